// What stages cost that were only ever measured alone, when their neighbours are at work as well:
// cores share caches, memory and heat.
#pragma once

#include "models/costs.h"

namespace pipelag {

/// `alone`, every time multiplied by what being side by side did to those of the same kind in a run
/// of reference: the sum over the stages of `reference` over that of `reference_alone`, apart for
/// forwards, for backwards (B, or I and W together) and for updates; rounded up. Messages are those
/// of `reference`. Both references know one form of backward, and no forward or backward of theirs
/// takes no time.
Costs SideBySide(const Costs& alone, const Costs& reference_alone, const Costs& reference);

}  // namespace pipelag
