#include "sim/estimated_run.h"

#include <algorithm>

namespace pipelag {

std::vector<Nanoseconds> ReductionsOf(const Schedule& schedule, const Estimate& estimate) {
  std::vector<Nanoseconds> times;
  if (estimate.reduction.empty()) return times;
  for (const CollectiveGroup& group : schedule.groups) {
    Nanoseconds longest{0};
    if (MovesGradients(group)) {
      for (const int placed : group.stages) {
        const auto slice = static_cast<size_t>(schedule.SliceOf(placed));
        longest = std::max(longest, estimate.reduction.at(slice));
      }
    }
    times.push_back(longest);
  }
  return times;
}

bool ReducesGradients(const RunLayout& layout) {
  return layout.data * layout.sharding.context > 1 && layout.shard_states < 3;
}

void AddReductionsToUpdates(const Schedule& schedule, Estimate& estimate) {
  if (std::any_of(schedule.groups.begin(), schedule.groups.end(), MovesGradients)) return;
  for (size_t s = 0; s < estimate.reduction.size(); ++s) {
    estimate.costs.update.at(s) += estimate.reduction[s];
  }
  estimate.reduction.clear();
}

Throughput ThroughputOf(const StepTime& step, const Estimate& estimate, const RunLayout& layout,
                        const Machine& machine) {
  Throughput run;
  run.step_seconds =
      static_cast<double>(step.numerator) / static_cast<double>(step.denominator) * 1e-9;
  if (run.step_seconds <= 0) return run;
  const auto gpus = static_cast<double>(layout.gpus());
  const double peak = PeakFlops(machine.accelerator, layout.precision);
  run.tokens_per_s =
      static_cast<double>(layout.sequences() * layout.sharding.tokens) / run.step_seconds;
  run.tokens_per_s_per_gpu = run.tokens_per_s / gpus;
  const double rate = estimate.model_flops / run.step_seconds / gpus;
  run.tflops_per_gpu = rate * 1e-12;
  run.mfu = rate / peak;
  run.hfu = estimate.hardware_flops / run.step_seconds / gpus / peak;
  return run;
}

}  // namespace pipelag
