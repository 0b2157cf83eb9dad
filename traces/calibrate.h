// From measured traces to a cost file.
#pragma once

#include <vector>

#include "models/costs.h"
#include "traces/trace.h"

namespace pipelag {

struct CalibrationOptions {
  int64_t warm_up = 1;  ///< first steps to drop: caches are cold, pages untouched
};

/// Per (kind, placed stage) the median over the steps of all traces of the step's mean duration,
/// rounded up. Halves of an OVERLAP tell nothing of the two actions alone and are left out. B is
/// known if it is on every stage, I and W likewise, both or neither; without any U an update costs
/// nothing; messages are as large as the largest. The latency is the median, over the actions that
/// waited for a message, of the time from the end of the action that produced it to their own
/// start: what a hop really costs, wake-up included; bandwidth stays unlimited, since one message
/// size cannot tell the two apart. Traces must agree in stages, else Error. Throws Error if a stage
/// lacks F, or B and I/W, after dropping the warm-up.
Costs Calibrate(const std::vector<Trace>& traces, const CalibrationOptions& options = {});

}  // namespace pipelag
