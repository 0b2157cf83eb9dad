// Schedules from files: what they say stands, and flags may repeat it. Must not know what is done
// with them.
#pragma once

#include <string>

#include "tools/flags.h"

namespace pipelag {

/// Reads a .csv. Throws Error naming flag and file for a flag that the file contradicts.
NamedSchedule ReadScheduleFile(const std::string& file, const Arguments& arguments);

/// What the flags have every update wait for: --clip-norm (whose value is checked), --flush-barrier
/// global, --replicas that reduce their gradients.
bool WantsNorm(const Arguments& arguments);
bool WantsBarrier(const Arguments& arguments);
bool ReplicasReduce(const Arguments& arguments);

}  // namespace pipelag
