// How weights aged in a run, read off its spans. Knows nothing of the schedule that was meant.
#pragma once

#include <vector>

#include "models/schedule/program.h"
#include "traces/trace.h"

namespace pipelag {

/// Per placed stage, over the whole run: delays of its F and B/I (the least: over the batches that
/// could be as late as the latest), versions live at once (a version from the U that makes it to
/// its last reader; the newest always), batches whose gradients were being summed at once. −1 where
/// the trace names no versions. `spans` must be sorted.
std::vector<StageVersions> MeasuredVersions(const Trace& trace);

}  // namespace pipelag
