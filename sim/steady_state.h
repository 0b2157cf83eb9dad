// The exact step time of an endless run: the maximum cycle ratio of the body's periodic event graph.
// Knows no wall clock and no schedule names.
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

/// `receive_slots` per lane, 0: as many as never delay.
SteadyState ExactSteadyState(const Program& program, const ActionTimes& times,
                             int receive_slots = 0);

}  // namespace pipelag
