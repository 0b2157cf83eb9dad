// What a simulated step of an estimated run means: reductions for the simulator, and throughput as
// people compare it. Knows no JSON and no schedule names.
#pragma once

#include <vector>

#include "models/cost/estimate.h"
#include "models/schedule/schedule.h"
#include "traces/metrics.h"

namespace pipelag {

/// Per group of the schedule, as ActionTimes wants them: the longest reduction of its stages; zero
/// for norms and barriers. Empty if the estimate has none.
std::vector<Nanoseconds> ReductionsOf(const Schedule& schedule, const Estimate& estimate);

/// Whether copies of weights have gradients to be reduced in an action of its own.
bool ReducesGradients(const RunLayout& layout);

/// A schedule without reductions of gradients (of a fixed order) has none of the estimate's
/// reductions left: its updates take that time too.
void AddReductionsToUpdates(const Schedule& schedule, Estimate& estimate);

struct Throughput {
  double step_seconds = 0;
  double tokens_per_s = 0;
  double tokens_per_s_per_gpu = 0;
  double tflops_per_gpu = 0;  ///< model FLOPs
  double mfu = 0;             ///< of the peak of the run's precision
  double hfu = 0;             ///< with what is recomputed
};
Throughput ThroughputOf(const StepTime& step, const Estimate& estimate, const RunLayout& layout,
                        const Machine& machine);

}  // namespace pipelag
