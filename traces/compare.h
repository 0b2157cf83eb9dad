// Holds a simulated run against a measured one (or any two runs of one schedule), action by action.
#pragma once

#include <string>
#include <vector>

#include "traces/metrics.h"
#include "traces/trace.h"

namespace pipelag {

/// Durations of one kind on one rank: medians over the joined actions.
struct ComparisonRow {
  int rank = 0;
  ActionKind kind = ActionKind::kForward;
  int64_t actions = 0;
  Nanoseconds measured{0};
  Nanoseconds simulated{0};
  double error = 0;  ///< simulated / measured − 1
};

struct Comparison {
  std::vector<ComparisonRow> rows;  ///< by (rank, kind), compute lane only
  StepTime measured_step;
  StepTime simulated_step;
  double step_error = 0;  ///< simulated / measured − 1
  Bubble measured_bubble;
  Bubble simulated_bubble;
  int64_t joined = 0;
  int64_t only_measured = 0;
  int64_t only_simulated = 0;
};

/// Joined on (rank, kind, stage, micro-batch). Steps before `warm_up` are left out of both.
/// `simulated_step`: the exact steady step time if known, else measured off the trace.
/// Throws Error if the two have nothing in common.
Comparison Compare(const Trace& measured, const Trace& simulated, int64_t warm_up = 1);

}  // namespace pipelag
