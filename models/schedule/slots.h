// Receive slots: how many messages of a lane can be under way or unconsumed at once, whatever the
// timing.
#pragma once

#include <vector>

#include "models/schedule/program.h"

namespace pipelag {

/// Per lane the least number of receive slots that can never delay a transfer: for every message
/// the number produced up to it, less those whose consumption is bound to have ended before it is
/// produced, because a chain of messages from the receiver to the sender says so. At least 1. What
/// ranks learn of each other through collectives is not counted on.
std::vector<int> NeverDelayingSlots(const Program& program);

}  // namespace pipelag
