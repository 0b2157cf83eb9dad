// The one name by which the MPI backend is found in its shared object.
#pragma once

#include "runtime/processes/wire.h"

namespace pipelag {

constexpr const char* kMpiLibrary = "libpipelag_mpi.so";
constexpr const char* kOpenMpiWire = "PipelagOpenMpiWire";

/// What kOpenMpiWire names: starts MPI and joins all processes that its launcher started. Returns
/// null and sets `error`, which it owns, if that fails.
using OpenMpiWire = Wire* (*)(const char** error);

}  // namespace pipelag
