#include "traces/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>

#include "models/error.h"

namespace pipelag {
namespace {

__extension__ using Wide = __int128;

struct Timed {
  std::tuple<int, ActionKind, int, int64_t> key;  // rank, kind, stage, micro-batch
  Nanoseconds duration{0};
};

/// Actions of the compute lanes after the warm-up, by key.
std::vector<Timed> ActionsOf(const Trace& trace, int64_t warm_up) {
  std::vector<Timed> actions;
  for (const Span& span : trace.spans) {
    if (!OnComputeLane(span.kind) || StepOf(span, trace) < warm_up) continue;
    actions.push_back({{span.rank, span.kind, span.stage, span.microbatch}, span.end - span.start});
  }
  std::stable_sort(actions.begin(), actions.end(),
                   [](const Timed& a, const Timed& b) { return a.key < b.key; });
  return actions;
}

double RelativeError(Wide measured, Wide simulated) {
  if (measured == simulated) return 0;
  if (measured == 0) return std::numeric_limits<double>::infinity();
  return static_cast<double>(simulated - measured) / static_cast<double>(measured);
}

struct Durations {
  std::vector<Nanoseconds> measured;
  std::vector<Nanoseconds> simulated;
};

/// Walks both sides by key; counts into `comparison` what one side has alone.
std::map<std::pair<int, ActionKind>, Durations> Join(const std::vector<Timed>& measured,
                                                     const std::vector<Timed>& simulated,
                                                     Comparison& comparison) {
  std::map<std::pair<int, ActionKind>, Durations> joined;
  auto m = measured.begin();
  auto s = simulated.begin();
  while (m != measured.end() && s != simulated.end()) {
    if (m->key < s->key) {
      ++comparison.only_measured;
      ++m;
    } else if (s->key < m->key) {
      ++comparison.only_simulated;
      ++s;
    } else {
      ++comparison.joined;
      Durations& of_kind = joined[{std::get<0>(m->key), std::get<1>(m->key)}];
      of_kind.measured.push_back((m++)->duration);
      of_kind.simulated.push_back((s++)->duration);
    }
  }
  comparison.only_measured += measured.end() - m;
  comparison.only_simulated += simulated.end() - s;
  return joined;
}

}  // namespace

Comparison Compare(const Trace& measured, const Trace& simulated, int64_t warm_up,
                   const std::optional<StepTime>& exact_step) {
  const auto size = [](const Trace& trace) {
    return std::tuple(trace.ranks, trace.replicas, trace.microbatches);
  };
  if (size(measured) != size(simulated)) {
    const auto text = [](const Trace& trace) {
      return fmt::format("{} with {} ranks in all, {} replicas and {} micro-batches a step",
                         trace.schedule, trace.ranks, trace.replicas, trace.microbatches);
    };
    throw Error(fmt::format("the two traces are not of the same size: {}, and {}", text(measured),
                            text(simulated)));
  }
  Comparison comparison;
  const auto joined = Join(ActionsOf(measured, warm_up), ActionsOf(simulated, warm_up), comparison);
  if (joined.empty()) {
    throw Error(fmt::format(
        "the two traces ({} with {} ranks and {} steps, {} with {} ranks and {} steps) have no "
        "action in common after leaving out the first {} steps",
        measured.schedule, measured.ranks, measured.steps, simulated.schedule, simulated.ranks,
        simulated.steps, warm_up));
  }
  for (const auto& [key, durations] : joined) {
    ComparisonRow row;
    row.rank = key.first;
    row.kind = key.second;
    row.actions = static_cast<int64_t>(durations.measured.size());
    row.measured = Median(durations.measured).RoundedUp();
    row.simulated = Median(durations.simulated).RoundedUp();
    row.error = RelativeError(row.measured.count(), row.simulated.count());
    comparison.rows.push_back(row);
  }
  comparison.measured_step = StepTimeOf(measured, warm_up);
  comparison.simulated_step = exact_step ? *exact_step : StepTimeOf(simulated, warm_up);
  const StepTime& m = comparison.measured_step;
  const StepTime& s = comparison.simulated_step;
  comparison.step_error =
      RelativeError(Wide{m.numerator} * s.denominator, Wide{s.numerator} * m.denominator);
  comparison.measured_bubble =
      ComputeMetrics(TotalsOf(measured), m, BusyPerStep(measured, warm_up)).bubble;
  comparison.simulated_bubble =
      ComputeMetrics(TotalsOf(simulated), s, BusyPerStep(simulated, warm_up)).bubble;
  return comparison;
}

bool WithinTolerance(const Comparison& comparison, double percent) {
  return 100 * std::abs(comparison.step_error) <= percent;
}

}  // namespace pipelag
