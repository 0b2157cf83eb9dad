// `pipelag run --compute emulated|busy`: stages that only take their time, held against the
// simulator.
#pragma once

#include <string_view>

#include "tools/arguments.h"

namespace pipelag {

/// What `run` does instead of training. Throws Error, naming the flag, for one that only training
/// has a use for and that does not come from a job file, which may serve both, and for more cores
/// than there are.
/// `compute`: emulated, or busy.
int RunEmulated(const Arguments& arguments, std::string_view compute);

}  // namespace pipelag
