#include "runtime/serial_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "runtime/runnable.h"

namespace pipelag {
namespace {

void CheckTied(const SerialPlan& plan, const NetworkShape& shape) {
  const SerialStage& first = plan.stages.front();
  const SerialStage& last = plan.stages.back();
  if (!shape.tied) return;
  if (first.forward_delay == last.forward_delay && first.backward_delay == last.backward_delay) {
    return;
  }
  throw Error(
      fmt::format("{}: first and last stage share the tied embedding (--tied), so their gradients "
                  "cannot be late by different numbers of updates",
                  plan.name));
}

void CheckRecompute(const SerialPlan& plan, Recompute recompute) {
  if (recompute == Recompute::kNone) return;
  for (const SerialStage& stage : plan.stages) {
    if (stage.forward_delay == stage.backward_delay) continue;
    throw Error(fmt::format(
        "{}: backwards run on newer weights than their forwards, so that what a forward "
        "computed cannot be computed again (--recompute)",
        plan.name));
  }
}

void CheckCorrection(const SerialPlan& plan, const CorrectionOptions& correction) {
  if (!ReadsWeightsTakenAt(correction)) return;
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const SerialStage& stage = plan.stages[s];
    const std::optional<int> delay = OneDelayOf(stage);
    if (delay == 0 || (delay && stage.keeps_weights)) continue;
    throw Error(fmt::format(
        "{}: {} (--correction) needs the weights that a gradient was taken at, but {}", plan.name,
        correction.name,
        delay ? fmt::format("stage {} has overwritten them before it applies it", s)
              : fmt::format("the micro-batches of one on stage {} read several versions", s)));
  }
}

}  // namespace

std::optional<int> OneDelayOf(const SerialStage& stage) {
  const int delay = stage.forward_delay[0];
  const auto other = [&](int late) { return late != delay; };
  if (std::any_of(stage.forward_delay.begin(), stage.forward_delay.end(), other) ||
      std::any_of(stage.backward_delay.begin(), stage.backward_delay.end(), other)) {
    return std::nullopt;
  }
  return delay;
}

SerialPlan PlanOf(const Program& program) {
  const Schedule& schedule = program.schedule();
  CheckRunnable(schedule);
  SerialPlan plan{.name = schedule.name,
                  .microbatches = schedule.microbatches,
                  .steps = program.steps(),
                  .stages = {},
                  .replicas = schedule.replicas};
  const auto m = static_cast<size_t>(schedule.microbatches);
  plan.stages.resize(static_cast<size_t>(schedule.stages),
                     {std::vector<int>(m), std::vector<int>(m), {}});
  for (int placed = 0; placed < schedule.placed_stages(); ++placed) {
    const StageVersions& versions = program.versions(placed);
    const bool kept = schedule.policy != WeightPolicy::kLatest &&
                      versions.weight_versions > versions.gradient_delay;
    SerialStage& stage = plan.stages[static_cast<size_t>(schedule.SliceOf(placed))];
    stage.keeps_weights = stage.keeps_weights && kept;
  }
  for (const auto& body : schedule.body) {
    for (size_t i = 0; i < body.size(); ++i) {
      const Action& action = body[i];
      if (!HasMicrobatch(action.kind)) continue;
      SerialStage& stage = plan.stages[static_cast<size_t>(schedule.SliceOf(action.stage))];
      const auto k = static_cast<size_t>(FloorMod(action.microbatch, schedule.microbatches));
      if (IsForward(action.kind)) {
        stage.forward_delay[k] = program.ReadDelay(action.stage, static_cast<int>(i));
      }
      if (YieldsInputGradient(action.kind)) {
        stage.backward_delay[k] = program.ReadDelay(action.stage, static_cast<int>(i));
      }
    }
  }
  // The order of one step's gradients within each stage's lane: by repetition, then by position.
  std::vector<std::vector<std::pair<int64_t, int>>> keyed(schedule.placement.size());
  for (const auto& body : schedule.body) {
    for (const Action& action : body) {
      if (!HasMicrobatch(action.kind) || !YieldsWeightGradient(action.kind)) continue;
      keyed[action.stage].emplace_back(
          -FloorDiv(action.microbatch, schedule.microbatches),
          static_cast<int>(FloorMod(action.microbatch, schedule.microbatches)));
    }
  }
  for (size_t s = 0; s < keyed.size(); ++s) {
    std::stable_sort(keyed[s].begin(), keyed[s].end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    const auto slice = static_cast<size_t>(schedule.SliceOf(static_cast<int>(s)));
    std::vector<int>& order = plan.stages[slice].backward_order.emplace_back();
    for (const auto& [block, microbatch] : keyed[s]) order.push_back(microbatch);
  }
  return plan;
}

SerialPlan PlanOfDelays(const std::vector<int>& delays, int stages, int microbatches, int64_t steps,
                        int replicas) {
  if (delays.size() != 1 && delays.size() != static_cast<size_t>(stages)) {
    throw Error(
        fmt::format("--delay names {} delays, but there are {} stages", delays.size(), stages));
  }
  // As many as a schedule can hold: a slip of the pen must not fill the memory.
  constexpr int64_t kMostForwards = int64_t{1} << 28;
  if (int64_t{microbatches} > kMostForwards / replicas / stages) {
    throw Error(
        fmt::format("{} replicas of {} stages with {} micro-batches each (--microbatches) are more "
                    "than the {} forwards of a step that can be held",
                    replicas, stages, microbatches, kMostForwards));
  }
  SerialPlan plan{.name = "serial",
                  .microbatches = microbatches * replicas,
                  .steps = steps,
                  .stages = {},
                  .replicas = replicas};
  const auto all = static_cast<size_t>(plan.microbatches);
  for (int s = 0; s < stages; ++s) {
    const int delay = delays.size() == 1 ? delays[0] : delays[static_cast<size_t>(s)];
    if (delay < 0) throw Error(fmt::format("--delay {} is negative", delay));
    SerialStage stage{std::vector<int>(all, delay), std::vector<int>(all, delay), {}};
    for (int replica = 0; replica < replicas; ++replica) {
      auto& order = stage.backward_order.emplace_back(static_cast<size_t>(microbatches));
      std::iota(order.begin(), order.end(), replica * microbatches);
    }
    plan.stages.push_back(std::move(stage));
  }
  return plan;
}

void CheckPlan(const SerialPlan& plan, const TrainingOptions& options) {
  if (options.split.size() != plan.stages.size()) {
    throw Error(fmt::format("{}: the network is split into {} stages, but there are {}", plan.name,
                            options.split.size(), plan.stages.size()));
  }
  CheckTied(plan, options.shape);
  CheckRecompute(plan, options.recompute);
  CheckCorrection(plan, options.correction);
}

}  // namespace pipelag
