// How far the clocks of processes on different machines are apart.
#pragma once

#include <string>
#include <vector>

#include "runtime/processes/process_link.h"
#include "runtime/processes/train.h"

namespace pipelag {

/// Called by all ranks at the same place, uses `tag`. On rank 0 throws Error naming the first rank
/// whose `job` is another text.
void CompareJobs(ProcessLink& link, int tag, const std::string& job);

/// Called by all ranks at the same place, uses `tag`. Rank 0 asks every other rank for its time a
/// few dozen times; the quickest answer counts (Cristian's algorithm). On rank 0 the offsets by
/// rank, elsewhere nothing.
std::vector<ClockOffset> CompareClocks(ProcessLink& link, int tag);

}  // namespace pipelag
