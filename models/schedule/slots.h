// Receive slots: how many messages of a lane can be under way or unconsumed at once, whatever the
// timing.
#pragma once

#include <vector>

#include "models/schedule/program.h"

namespace pipelag {

/// Per lane the least number of receive slots that can never delay a transfer: for every message the
/// number produced up to it, less those whose consumption is known to have ended when it is produced,
/// because a message from the receiver that the sender has consumed says so. At least 1. For
/// schedules whose neighbours answer each other this is exact; else it is an upper bound.
std::vector<int> NeverDelayingSlots(const Program& program);

}  // namespace pipelag
