#include "traces/series.h"

#include <algorithm>
#include <numeric>

#include "models/error.h"

namespace pipelag {
namespace {

double Value(StepTime time) {
  return static_cast<double>(time.numerator) / static_cast<double>(time.denominator);
}

}  // namespace

double SeriesSummary::ErrorOf(StepTime predicted) const {
  return Value(predicted) / Value(metrics.step_time) - 1;
}

SeriesSummary Summarise(const std::vector<const Trace*>& traces, int64_t warm_up) {
  CHECK(!traces.empty());
  std::vector<Metrics> all;
  for (const Trace* trace : traces) all.push_back(ComputeMetrics(*trace, warm_up));
  std::vector<size_t> order(all.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return Value(all[a].step_time) < Value(all[b].step_time);
  });
  SeriesSummary summary;
  summary.typical = order[(order.size() - 1) / 2];
  summary.metrics = all[summary.typical];
  summary.least = all[order.front()].step_time;
  summary.greatest = all[order.back()].step_time;
  return summary;
}

}  // namespace pipelag
