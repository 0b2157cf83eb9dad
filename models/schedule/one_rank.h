// All stages of a network on one rank, which nobody disturbs: what its stages cost by themselves.
#pragma once

#include "models/schedule/schedule.h"

namespace pipelag {

/// One rank takes each micro-batch through all stages and back before the next, then updates all of
/// them. `split`: backwards are I and W, one directly behind the other, instead of B. All counts
/// are at least 1.
Schedule OnOneRank(int stages, int microbatches, bool split);

}  // namespace pipelag
