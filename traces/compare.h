// Holds a simulated run against a measured one (or any two runs of one schedule), action by action.
#pragma once

#include <optional>
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
  double error = 0;  ///< simulated / measured − 1; 0 if both are 0, infinite if only measured is
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

/// Joins the actions of the compute lanes on (rank, kind, stage, micro-batch). Steps before
/// `warm_up` are left out of both. `exact_step`: the exact steady step time of the simulated side
/// if known, else it is measured off the trace. Throws Error if the two have nothing in common.
Comparison Compare(const Trace& measured, const Trace& simulated, int64_t warm_up = 1,
                   const std::optional<StepTime>& exact_step = std::nullopt);

/// Whether the step time is predicted to within `percent` of the measured one, either way.
bool WithinTolerance(const Comparison& comparison, double percent);

}  // namespace pipelag
