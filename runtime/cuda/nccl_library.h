// NCCL behind the runtime's seam, loaded when it is asked for: without it everything else runs.
// Knows nothing but calls.
#pragma once

#include <memory>

#include "runtime/device/collective_library.h"

namespace pipelag::cuda {

constexpr const char* kNccl = "libnccl.so.2";

/// Throws Error saying why it cannot be loaded.
std::unique_ptr<CollectiveLibrary> OpenNccl(const char* file = kNccl);

}  // namespace pipelag::cuda
