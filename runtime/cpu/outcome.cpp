#include "runtime/cpu/outcome.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "models/error.h"
#include "runtime/executor.h"
#include "runtime/runnable.h"
#include "runtime/serial_plan.h"

namespace pipelag {
namespace {

/// Copies of a slice, or of a tied embedding, have seen the same gradients, so whatever tells them
/// apart is our own fault.
void CheckCopiesAgree(const Schedule& schedule, const std::vector<StageWeights>& placed) {
  for (size_t s = static_cast<size_t>(schedule.stages); s < placed.size(); ++s) {
    const StageWeights& first = placed[s % static_cast<size_t>(schedule.stages)];
    // By bits: a run whose last update broke the weights may hold NaN.
    const auto bytes = static_cast<size_t>(first.layout->size()) * sizeof(float);
    CHECK(std::memcmp(first.weights, placed[s].weights, bytes) == 0);
  }
  const StageWeights& first = placed.front();
  const StageWeights& last = placed[static_cast<size_t>(schedule.stages) - 1];
  const StageTensor* embedding = first.layout->tied();
  if (embedding == nullptr) return;
  CHECK(std::memcmp(first.weights + embedding->offset, last.weights + last.layout->tied()->offset,
                    static_cast<size_t>(embedding->elements()) * sizeof(float)) == 0);
}

}  // namespace

void CheckFits(const Program& program, const TrainingOptions& options) {
  const Schedule& schedule = program.schedule();
  CheckPlan(PlanOf(program), options);
  const auto refuse = [&](const char* why) { throw ScheduleError(schedule, {{why}}); };
  const bool shares = SharesTensor(schedule);
  if (shares && !options.shape.tied) {
    refuse(
        "first and last stage exchange the gradients of a tied embedding, but the network's head "
        "is its own (--tied)");
  }
  if (!shares && options.shape.tied && schedule.stages > 1) {
    refuse("first and last stage do not exchange the gradients of the tied embedding (--tied)");
  }
  const bool has_norm =
      std::any_of(schedule.groups.begin(), schedule.groups.end(), [](const CollectiveGroup& group) {
        return group.purpose == CollectiveGroup::Purpose::kNorm;
      });
  if (has_norm && !options.clip_norm) {
    refuse("updates wait for the global norm of gradients, but nothing is clipped (--clip-norm)");
  }
  if (!has_norm && options.clip_norm) {
    refuse("updates do not wait for the global norm that gradients are clipped by (--clip-norm)");
  }
}

WorkerOptions WorkerOptionsOf(const TrainingOptions& options) {
  WorkerOptions worker;
  worker.message_bytes = static_cast<size_t>(options.microbatch_size) *
                         static_cast<size_t>(options.shape.sequence) *
                         static_cast<size_t>(options.shape.hidden) * sizeof(float);
  worker.first_step = options.first_step();
  worker.traced_steps = options.traced_steps;
  worker.norm_values = TensorCount(options.shape);
  return worker;
}

TrainingResult Outcome(const Program& program, const TrainingOptions& options, const Corpus& corpus,
                       const std::vector<RankPlan>& plans, std::vector<WorkerResult>& results,
                       std::vector<StageWeights> placed, const std::vector<double>& losses) {
  const Schedule& schedule = program.schedule();
  TrainingResult training;
  training.first_step = options.first_step();
  training.trace = CollectTrace(program, results);
  training.trace.tokens_per_step = TokensPerStep(options, schedule.microbatches);
  training.peak_activations.resize(placed.size());
  training.peak_kept.resize(placed.size());
  training.peak_versions.resize(placed.size());
  for (size_t rank = 0; rank < plans.size(); ++rank) {
    const WorkerResult& result = results[rank];
    training.peak_handovers.push_back(result.peak_handovers);
    for (size_t i = 0; i < plans[rank].stages.size(); ++i) {
      const auto s = static_cast<size_t>(plans[rank].stages[i].stage);
      training.peak_activations[s] = result.peak_activations[i];
      training.peak_kept[s] = result.peak_kept[i];
      training.peak_versions[s] = result.peak_versions[i];
    }
  }
  CheckCopiesAgree(schedule, placed);
  placed.resize(static_cast<size_t>(schedule.stages));
  std::vector<const float*> pointers;
  for (const StageWeights& stage : placed) pointers.push_back(stage.weights);
  training.step_losses = StepLosses(options, schedule.microbatches, losses);
  training.weights_sha256 = WeightsSha256(placed);
  if (options.on_final_weights) options.on_final_weights(placed);
  training.validation_tokens = TokensPerStep(options, 1) * options.validation_microbatches;
  const double loss =
      options.validation ? options.validation(pointers) : ValidationLoss(options, corpus, pointers);
  SetValidationLoss(options, loss, training);
  return training;
}

TrainingResult DivergedOutcome(const Program& program, const TrainingOptions& options,
                               std::vector<WorkerResult>& results, std::vector<double> losses,
                               const Diverged& diverged,
                               const std::vector<std::optional<Breaking>>& seen,
                               const std::vector<std::string>& not_finite) {
  const int microbatches = program.schedule().microbatches;
  TrainingResult training;
  training.first_step = options.first_step();
  training.diverged = training.first_step + diverged.step + 1;
  losses.resize(static_cast<size_t>((diverged.step + 1) * microbatches));
  training.step_losses = StepLosses(options, microbatches, losses);
  training.diverged_where = WhereDiverged(Earliest(seen), diverged, not_finite,
                                          training.step_losses.back(), training.first_step);
  training.trace = CollectTrace(program, results);
  training.trace.tokens_per_step = TokensPerStep(options, microbatches);
  return training;
}

}  // namespace pipelag
