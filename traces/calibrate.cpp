#include "traces/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <tuple>

#include "models/error.h"
#include "traces/metrics.h"

namespace pipelag {
namespace {

/// Durations of F, B, I, W and U, each by stage: one per step, the mean of the step's actions. The
/// step takes their sum, and a now and then interrupted action is part of every step: the median of
/// single actions would be below what a step pays for each.
class Samples {
 public:
  explicit Samples(int stages) {
    for (auto& of_kind : times_) of_kind.resize(static_cast<size_t>(stages));
  }

  /// `spans` of one run.
  void Add(const std::vector<Span>& spans, const Trace& trace) {
    struct Sum {
      int64_t time = 0;
      int64_t actions = 0;
    };
    std::map<std::tuple<ActionKind, int, int64_t>, Sum> steps;
    for (const Span& span : spans) {
      Sum& sum = steps[{span.kind, span.stage, StepOf(span, trace)}];
      sum.time += (span.end - span.start).count();
      ++sum.actions;
    }
    for (const auto& [key, sum] : steps) {
      auto& of_kind = times_[static_cast<size_t>(std::get<0>(key))];
      const auto stage = static_cast<size_t>(std::get<1>(key));
      CHECK(stage < of_kind.size());
      of_kind[stage].push_back(Nanoseconds{(sum.time + sum.actions - 1) / sum.actions});
    }
  }

  bool Has(ActionKind kind, size_t stage) const { return !OfKind(kind)[stage].empty(); }

  bool OnEveryStage(ActionKind kind) const {
    const auto& of_kind = OfKind(kind);
    return std::none_of(of_kind.begin(), of_kind.end(),
                        [](const auto& times) { return times.empty(); });
  }

  /// One per stage; 0 for a stage without samples.
  std::vector<Nanoseconds> Medians(ActionKind kind) const {
    std::vector<Nanoseconds> medians;
    for (const auto& times : OfKind(kind)) {
      medians.push_back(times.empty() ? Nanoseconds{0} : Median(times).RoundedUp());
    }
    return medians;
  }

 private:
  const std::vector<std::vector<Nanoseconds>>& OfKind(ActionKind kind) const {
    return times_[static_cast<size_t>(kind)];
  }

  static constexpr size_t kKinds = static_cast<size_t>(ActionKind::kUpdate) + 1;
  std::array<std::vector<std::vector<Nanoseconds>>, kKinds> times_;
};

/// What another stage waits for: the end of an F (forward) or of a B or I.
struct Product {
  std::tuple<bool, int, int64_t> key;  // forward, stage, micro-batch
  Nanoseconds end{0};
  int rank = 0;
};

std::vector<Product> ProductsOf(const Trace& trace) {
  std::vector<Product> products;
  for (const Span& span : trace.spans) {
    if (!IsForward(span.kind) && !YieldsInputGradient(span.kind)) continue;
    products.push_back({{IsForward(span.kind), span.stage, span.microbatch}, span.end, span.rank});
  }
  std::sort(products.begin(), products.end(),
            [](const Product& a, const Product& b) { return a.key < b.key; });
  return products;
}

/// Adds, for every action that waited for another rank, the time since its message was produced.
void AddHops(const Trace& trace, int64_t warm_up, std::vector<Nanoseconds>& hops) {
  const std::vector<Product> products = ProductsOf(trace);
  for (const Span& span : trace.spans) {
    const bool forward = IsForward(span.kind);
    if (!forward && !YieldsInputGradient(span.kind)) continue;
    // Which half of an OVERLAP was waited for cannot be told.
    if (span.overlapped || span.wait.count() <= 0 || StepOf(span, trace) < warm_up) continue;
    const std::tuple key(forward, forward ? span.stage - 1 : span.stage + 1, span.microbatch);
    const auto producer =
        std::lower_bound(products.begin(), products.end(), key,
                         [](const Product& product, const auto& k) { return product.key < k; });
    if (producer == products.end() || producer->key != key || producer->rank == span.rank) continue;
    hops.push_back(span.start - producer->end);
  }
}

void CheckComplete(const Samples& samples, int stages, int64_t warm_up) {
  const auto fail = [&](size_t stage, std::string_view what) {
    throw Error(
        fmt::format("stage {} has no {} after dropping the first {} steps", stage, what, warm_up));
  };
  const bool fused = samples.OnEveryStage(ActionKind::kBackward);
  const bool split = samples.OnEveryStage(ActionKind::kBackwardInput) &&
                     samples.OnEveryStage(ActionKind::kBackwardWeight);
  for (size_t stage = 0; stage < static_cast<size_t>(stages); ++stage) {
    if (!samples.Has(ActionKind::kForward, stage)) fail(stage, "F");
    if (fused || split || samples.Has(ActionKind::kBackward, stage)) continue;
    if (!samples.Has(ActionKind::kBackwardInput, stage)) fail(stage, "B and no I");
    if (!samples.Has(ActionKind::kBackwardWeight, stage)) fail(stage, "B and no W");
  }
  if (!fused && !split) {
    throw Error(
        "some stages have only B, others only I and W: no form of backward is on every stage");
  }
}

/// I and W of every stage, if they are known on any: of a stage that has B alone as B is divided on
/// those that have both.
void SplitBackwards(const Samples& samples, Costs& costs) {
  std::vector<Nanoseconds> input = samples.Medians(ActionKind::kBackwardInput);
  std::vector<Nanoseconds> weight = samples.Medians(ActionKind::kBackwardWeight);
  Nanoseconds inputs{0};
  Nanoseconds both{0};
  std::vector<size_t> unknown;
  for (size_t s = 0; s < input.size(); ++s) {
    if (samples.Has(ActionKind::kBackwardInput, s) && samples.Has(ActionKind::kBackwardWeight, s)) {
      inputs += input[s];
      both += input[s] + weight[s];
    } else {
      unknown.push_back(s);
    }
  }
  if (both.count() == 0 || (!unknown.empty() && costs.backward.empty())) return;
  const double share = static_cast<double>(inputs.count()) / static_cast<double>(both.count());
  for (const size_t s : unknown) {
    const double of_stage = share * static_cast<double>(costs.backward[s].count());
    input[s] = Nanoseconds{std::llround(of_stage)};
    weight[s] = costs.backward[s] - input[s];
  }
  costs.backward_input = std::move(input);
  costs.backward_weight = std::move(weight);
}

std::string SourceOf(const std::vector<Trace>& traces, int64_t warm_up) {
  std::string source = "calibrated on ";
  for (size_t i = 0; i < traces.size(); ++i) {
    source += fmt::format("{}{} on {} ranks, steps {} to {}", i == 0 ? "" : "; ",
                          traces[i].schedule, traces[i].ranks, warm_up, traces[i].steps - 1);
  }
  return source;
}

}  // namespace

Costs Calibrate(const std::vector<Trace>& traces, const CalibrationOptions& options) {
  if (traces.empty()) throw Error("calibration needs at least one trace");
  const int stages = traces.front().stages;
  Samples samples(stages);
  std::vector<Nanoseconds> hops;
  Costs costs;
  for (const Trace& trace : traces) {
    if (trace.stages != stages) {
      throw Error(fmt::format("the traces differ in stages: {} has {}, {} has {}",
                              traces.front().schedule, stages, trace.schedule, trace.stages));
    }
    std::vector<Span> kept;
    for (const Span& span : trace.spans) {
      costs.activation_bytes = std::max(costs.activation_bytes, span.bytes);
      if (!OnComputeLane(span.kind) || span.overlapped) continue;
      if (StepOf(span, trace) >= options.warm_up) kept.push_back(span);
    }
    samples.Add(kept, trace);
    AddHops(trace, options.warm_up, hops);
  }
  CheckComplete(samples, stages, options.warm_up);
  costs.forward = samples.Medians(ActionKind::kForward);
  if (samples.OnEveryStage(ActionKind::kBackward)) {
    costs.backward = samples.Medians(ActionKind::kBackward);
  }
  SplitBackwards(samples, costs);
  costs.update = samples.Medians(ActionKind::kUpdate);
  // Clocks of two machines may disagree by more than a hop takes.
  if (!hops.empty()) costs.p2p_latency = std::max(Nanoseconds{0}, Median(hops).RoundedUp());
  costs.source = SourceOf(traces, options.warm_up);
  return costs;
}

Trace OfSlices(Trace trace, int slices) {
  for (Span& span : trace.spans) {
    if (span.kind != ActionKind::kAllReduce) span.stage %= slices;
  }
  trace.stages = slices;
  trace.stage_rank.resize(static_cast<size_t>(slices));
  return trace;
}

std::vector<Nanoseconds> ReductionTimes(const Trace& trace, size_t groups, int64_t warm_up) {
  std::vector<std::map<int64_t, Nanoseconds>> shortest(groups);  // by step
  for (const Span& span : trace.spans) {
    if (span.kind != ActionKind::kAllReduce || StepOf(span, trace) < warm_up) continue;
    const Nanoseconds time = span.end - span.start;
    auto& of_group = shortest.at(static_cast<size_t>(span.stage));
    const auto [entry, fresh] = of_group.try_emplace(StepOf(span, trace), time);
    if (!fresh) entry->second = std::min(entry->second, time);
  }
  std::vector<Nanoseconds> times(groups);
  for (size_t g = 0; g < groups; ++g) {
    std::vector<Nanoseconds> of_steps;
    for (const auto& [step, time] : shortest[g]) of_steps.push_back(time);
    if (!of_steps.empty()) times[g] = Median(std::move(of_steps)).RoundedUp();
  }
  return times;
}

}  // namespace pipelag
