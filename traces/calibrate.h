// From measured traces to a cost file.
#pragma once

#include <vector>

#include "models/costs.h"
#include "traces/trace.h"

namespace pipelag {

struct CalibrationOptions {
  int64_t warm_up = 1;  ///< first steps to drop: caches are cold, pages untouched
};

/// Medians per (kind, stage) over all traces. The latency is the median, over the actions that waited
/// for a message, of the time from the end of the action that produced it to their own start: what a
/// hop really costs, wake-up included; bandwidth stays unlimited, since one message size cannot tell
/// the two apart. Traces must agree in stages. Throws Error if a stage lacks F, or B and I/W, after
/// dropping the warm-up.
Costs Calibrate(const std::vector<Trace>& traces, const CalibrationOptions& options = {});

}  // namespace pipelag
