// `pipelag run --compute emulated`: stages that only take their time, held against the simulator.
#pragma once

#include "tools/arguments.h"

namespace pipelag {

/// What `run` does instead of training. Throws Error, naming the flag, for one that only training
/// has a use for and that does not come from a job file, which may serve both.
int RunEmulated(const Arguments& arguments);

}  // namespace pipelag
