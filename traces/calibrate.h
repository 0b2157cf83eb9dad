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
/// known if it is on every stage; so are I and W, and where B is, a stage that has no I or W of its
/// own divides its B as the stages that have both do. Without any U an update costs
/// nothing; messages are as large as the largest. The latency is the median, over the actions that
/// waited for a message, of the time from the end of the action that produced it to their own
/// start: what a hop really costs, wake-up included; bandwidth stays unlimited, since one message
/// size cannot tell the two apart. Traces must agree in stages, else Error. Throws Error if a stage
/// lacks F, or B and I/W, after dropping the warm-up.
Costs Calibrate(const std::vector<Trace>& traces, const CalibrationOptions& options = {});

/// The same run, told by slices of the network: what was done on any copy of a stage counts as done
/// on the stage. `slices` of them; placed stage s is a copy of slice s mod `slices`. Groups of ARs
/// keep their numbers.
Trace OfSlices(Trace trace, int slices);

/// By group, of `groups`: the median over the steps from `warm_up` on of the shortest of the
/// members' AR spans, since whoever comes last to it waits for nobody. 0 for a group without any.
std::vector<Nanoseconds> ReductionTimes(const Trace& trace, size_t groups, int64_t warm_up);

}  // namespace pipelag
