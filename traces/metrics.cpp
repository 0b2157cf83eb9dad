// Figures of a run, in exact integers up to the last division.
#include "traces/metrics.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>

#include "models/error.h"
#include "traces/in_flight.h"

namespace pipelag {
namespace {

__extension__ using Wide = __int128;

Wide Magnitude(Wide value) { return value < 0 ? -value : value; }

/// numerator ÷ denominator as the nearest double: cancelled first, since only integers below 2^53
/// survive the conversion.
double Ratio(Wide numerator, Wide denominator) {
  if (denominator == 0) return 0;
  Wide a = Magnitude(numerator);
  Wide b = Magnitude(denominator);
  while (b != 0) {
    const Wide rest = a % b;
    a = b;
    b = rest;
  }
  return static_cast<double>(numerator / a) / static_cast<double>(denominator / a);
}

StepTime Reduced(int64_t numerator, int64_t denominator) {
  const int64_t common = std::gcd(numerator, denominator);
  return {numerator / common, denominator / common};
}

Nanoseconds EarliestStart(const Trace& trace) {
  std::optional<Nanoseconds> earliest;
  for (const Span& span : trace.spans) {
    if (OnComputeLane(span.kind) && (!earliest || span.start < *earliest)) earliest = span.start;
  }
  return earliest.value_or(Nanoseconds{0});
}

/// Calls visit(span, wait) once per action of a compute lane, an OVERLAP being one action.
template <typename Visit>
void ForEachComputeAction(const Trace& trace, const Visit& visit) {
  for (size_t i = 0; i < trace.spans.size(); ++i) {
    const Span& span = trace.spans[i];
    if (!OnComputeLane(span.kind)) continue;
    Nanoseconds wait = span.wait;
    if (i + 1 < trace.spans.size() && AreHalves(span, trace.spans[i + 1])) {
      wait = std::max(wait, trace.spans[++i].wait);
    }
    visit(span, wait);
  }
}

Bubble BubbleOf(const Metrics& metrics, Nanoseconds busy_per_step) {
  Wide idle = 0;
  Nanoseconds busiest{0};
  Bubble bubble;
  for (const RankMetrics& rank : metrics.ranks) {
    idle += rank.idle.count();
    busiest = std::max(busiest, rank.totals.busy);
    const Nanoseconds span = rank.totals.last_end - rank.totals.first_start;
    bubble.of_span =
        std::max(bubble.of_span, Ratio((span - rank.totals.busy).count(), span.count()));
  }
  const auto ranks = static_cast<Wide>(metrics.ranks.size());
  bubble.idle_of_makespan = Ratio(idle, ranks * metrics.makespan.count());
  bubble.idle_over_ideal = Ratio((metrics.makespan - busiest).count(), busiest.count());
  const Wide step = metrics.step_time.numerator;
  bubble.steady_state =
      Ratio(step - Wide{busy_per_step.count()} * metrics.step_time.denominator, step);
  return bubble;
}

}  // namespace

Nanoseconds StepTime::RoundedUp() const {
  CHECK(denominator > 0);
  const int64_t whole = numerator / denominator;
  return Nanoseconds{whole + (numerator % denominator > 0 ? 1 : 0)};
}

Metrics ComputeMetrics(const std::vector<RankTotals>& ranks, StepTime step_time,
                       Nanoseconds busy_per_step) {
  Metrics metrics;
  metrics.step_time = step_time;
  for (const RankTotals& rank : ranks) metrics.makespan = std::max(metrics.makespan, rank.last_end);
  for (const RankTotals& rank : ranks) {
    metrics.ranks.push_back({rank, metrics.makespan - rank.busy});
  }
  metrics.bubble = BubbleOf(metrics, busy_per_step);
  return metrics;
}

Metrics ComputeMetrics(const Trace& trace, int64_t warm_up) {
  return ComputeMetrics(TotalsOf(trace), StepTimeOf(trace, warm_up), BusyPerStep(trace, warm_up));
}

std::vector<RankTotals> TotalsOf(const Trace& trace) {
  const Nanoseconds zero = EarliestStart(trace);
  std::vector<RankTotals> totals(static_cast<size_t>(trace.ranks));
  std::vector<bool> seen(totals.size());
  ForEachComputeAction(trace, [&](const Span& span, Nanoseconds wait) {
    const auto rank = static_cast<size_t>(span.rank);
    CHECK(rank < totals.size());
    RankTotals& own = totals[rank];
    const Nanoseconds start = span.start - zero;
    const Nanoseconds end = span.end - zero;
    own.first_start = seen[rank] ? std::min(own.first_start, start) : start;
    own.last_end = seen[rank] ? std::max(own.last_end, end) : end;
    own.busy += span.end - span.start;
    own.wait += wait;
    seen[rank] = true;
  });
  for (const Span& span : trace.spans) {
    if (!IsReceive(span.kind)) continue;
    CHECK(span.rank >= 0 && span.rank < trace.ranks);
    totals[static_cast<size_t>(span.rank)].transfer += span.end - span.start;
  }
  const auto in_flight = ActivationsInFlight(trace);
  for (size_t rank = 0; rank < totals.size(); ++rank) {
    for (const HeldActivations& held : in_flight[rank]) {
      totals[rank].peak_in_flight = std::max(totals[rank].peak_in_flight, held.held);
    }
  }
  return totals;
}

std::vector<Nanoseconds> StepEnds(const Trace& trace) {
  const Nanoseconds zero = EarliestStart(trace);
  std::map<int64_t, Nanoseconds> backward;
  std::map<int64_t, Nanoseconds> ends;
  for (const Span& span : trace.spans) {
    const bool update = span.kind == ActionKind::kUpdate;
    if (!update && !YieldsWeightGradient(span.kind)) continue;
    auto& of_kind = update ? ends : backward;
    const auto [step, is_new] = of_kind.try_emplace(StepOf(span, trace), span.end - zero);
    if (!is_new) step->second = std::max(step->second, span.end - zero);
  }
  ends.insert(backward.begin(), backward.end());  // only the steps without an update
  std::vector<Nanoseconds> in_order;
  in_order.reserve(ends.size());
  for (const auto& [step, end] : ends) in_order.push_back(end);
  return in_order;
}

StepTime StepTimeOf(const Trace& trace, int64_t warm_up) {
  const std::vector<Nanoseconds> ends = StepEnds(trace);
  if (ends.size() < 2) {
    Nanoseconds makespan{0};
    for (const RankTotals& rank : TotalsOf(trace)) makespan = std::max(makespan, rank.last_end);
    return {makespan.count(), 1};
  }
  const auto last = static_cast<int64_t>(ends.size()) - 1;
  std::vector<Nanoseconds> times;
  for (int64_t t = std::clamp<int64_t>(warm_up, 1, last); t <= last; ++t) {
    times.push_back(ends[static_cast<size_t>(t)] - ends[static_cast<size_t>(t - 1)]);
  }
  return Median(std::move(times));
}

Nanoseconds BusyPerStep(const Trace& trace, int64_t warm_up) {
  std::map<std::pair<int, int64_t>, Nanoseconds> busy;  // by rank, step
  ForEachComputeAction(trace, [&](const Span& span, Nanoseconds) {
    busy[{span.rank, StepOf(span, trace)}] += span.end - span.start;
  });
  int64_t last = 0;
  for (const auto& [key, time] : busy) last = std::max(last, key.second);
  const int64_t first = warm_up > last ? 0 : warm_up;
  std::map<int, std::vector<Nanoseconds>> by_rank;
  for (const auto& [key, time] : busy) {
    if (key.second >= first) by_rank[key.first].push_back(time);
  }
  Nanoseconds busiest{0};
  for (auto& [rank, times] : by_rank) {
    busiest = std::max(busiest, Median(std::move(times)).RoundedUp());
  }
  return busiest;
}

StepTime Median(std::vector<Nanoseconds> values) {
  CHECK(!values.empty());
  const size_t middle = values.size() / 2;
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(middle);
  std::nth_element(values.begin(), at, values.end());
  if (values.size() % 2 == 1) return {at->count(), 1};
  const Nanoseconds lower = *std::max_element(values.begin(), at);
  return Reduced(lower.count() + at->count(), 2);
}

IdleParts PartsOfIdle(const Metrics& metrics, size_t rank) {
  const RankTotals& totals = metrics.ranks.at(rank).totals;
  return {totals.first_start, totals.last_end - totals.first_start - totals.busy,
          metrics.makespan - totals.last_end};
}

double TokensPerSecond(const Trace& trace, StepTime step_time) {
  if (step_time.numerator == 0) return 0;
  return static_cast<double>(trace.tokens_per_step) * 1e9 *
         static_cast<double>(step_time.denominator) / static_cast<double>(step_time.numerator);
}

std::vector<int64_t> MeasuredDelay(const Trace& trace) {
  std::vector<int64_t> delay(static_cast<size_t>(trace.stages), -1);
  for (const Span& span : trace.spans) {
    if (!IsForward(span.kind) || span.weight_version < 0) continue;
    CHECK(span.stage >= 0 && span.stage < trace.stages);
    int64_t& own = delay[static_cast<size_t>(span.stage)];
    own = std::max(own, StepOf(span, trace) - span.weight_version);
  }
  return delay;
}

}  // namespace pipelag
