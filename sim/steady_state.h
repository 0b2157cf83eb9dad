// The exact step time of an endless run: the maximum cycle ratio of the body's periodic event
// graph. Knows no wall clock and no schedule names.
#pragma once

#include <vector>

#include "models/schedule/program.h"
#include "sim/times.h"
#include "traces/metrics.h"

namespace pipelag {

/// The mean step time of the endless body, and what limits it.
struct SteadyState {
  StepTime step_time;
  std::vector<int> critical_ranks;  ///< ranks on the critical cycle, ascending
  bool crosses_links = false;       ///< messages are on the critical cycle
};

/// `receive_slots` per lane, 0: as many as never delay. Builds the whole event graph, some 300
/// bytes per action of the body.
SteadyState ExactSteadyState(const Program& program, const ActionTimes& times,
                             int receive_slots = 0);

/// The step time alone. Of a schedule with a flush and free slots nothing but times passes from one
/// step to the next, so a few steps are played until those times repeat, all later by the same:
/// then they do for ever. Else, and if they do not repeat soon, as above. `start`: Play::Times() at
/// the end of a run, which saves playing towards the steady state.
StepTime ExactStepTime(const Program& program, const ActionTimes& times, int receive_slots = 0,
                       const std::vector<int64_t>& start = {});

}  // namespace pipelag
