// Quantiles over seeds.
#include "sim/spread.h"

#include <fmt/format.h>

#include <algorithm>

namespace pipelag {

Quantiles QuantilesOf(std::vector<Nanoseconds> values) {
  CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  const auto at = [&](size_t percent) { return values[(values.size() * percent + 99) / 100 - 1]; };
  return {at(5), at(50), at(95)};
}

RunSpread SpreadOverSeeds(const Program& program, const ActionTimes& times,
                          SimulationOptions options, int seeds) {
  if (seeds < 1) throw Error(fmt::format("--seeds must be at least 1, not {}", seeds));
  options.spans = false;
  std::vector<Nanoseconds> makespans;
  std::vector<Nanoseconds> steps;
  for (int i = 0; i < seeds; ++i, ++options.noise.seed) {
    const Metrics metrics = Simulate(program, times, options).metrics;
    makespans.push_back(metrics.makespan);
    steps.push_back(metrics.step_time.RoundedUp());
  }
  return {QuantilesOf(std::move(makespans)), QuantilesOf(std::move(steps))};
}

}  // namespace pipelag
