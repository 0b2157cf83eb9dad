#include "runtime/cpu/threads.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <thread>

#include "models/schedule/slots.h"
#include "runtime/cpu/cpu_compute.h"
#include "runtime/cpu/local_transport.h"
#include "runtime/executor.h"
#include "runtime/network/digest.h"

namespace pipelag {
namespace {

/// Copies of a slice have seen the same gradients, so whatever tells them apart is our own fault.
void CheckCopiesAgree(const Schedule& schedule, const std::vector<StageWeights>& placed) {
  for (size_t s = static_cast<size_t>(schedule.stages); s < placed.size(); ++s) {
    const StageWeights& first = placed[s % static_cast<size_t>(schedule.stages)];
    // By bits: a run whose last update broke the weights may hold NaN.
    const auto bytes = static_cast<size_t>(first.layout->size()) * sizeof(float);
    CHECK(std::memcmp(first.weights, placed[s].weights, bytes) == 0);
  }
}

/// By slice of the network.
std::vector<std::string> NotFinite(const Schedule& schedule, const std::vector<RankPlan>& plans,
                                   const std::vector<std::unique_ptr<CpuCompute>>& computes) {
  std::vector<std::string> tensors(static_cast<size_t>(schedule.stages));
  for (size_t rank = 0; rank < plans.size(); ++rank) {
    for (size_t i = 0; i < plans[rank].stages.size(); ++i) {
      std::string& tensor = tensors[static_cast<size_t>(plans[rank].stages[i].slice)];
      if (tensor.empty()) tensor = computes[rank]->NotFinite(i);
    }
  }
  return tensors;
}

}  // namespace

TrainingResult TrainOnThreads(const Program& program, const TrainingOptions& options,
                              const Corpus& corpus, const Interposer& interpose) {
  const Schedule& schedule = program.schedule();
  if (static_cast<int>(options.split.size()) != schedule.stages) {
    throw Error(fmt::format("the network is split into {} stages, but the schedule has {}",
                            options.split.size(), schedule.stages));
  }
  const bool has_norm =
      std::any_of(schedule.groups.begin(), schedule.groups.end(), [](const CollectiveGroup& group) {
        return group.purpose == CollectiveGroup::Purpose::kNorm;
      });
  if (options.clip_norm.has_value() != has_norm) {
    throw Error("clipping by the global norm and a schedule that waits for the norm go together");
  }
  RunControl control(options.deadline);
  if (schedule.ranks <= static_cast<int>(std::thread::hardware_concurrency())) {
    control.set_patience(std::chrono::seconds(1));
  }
  LocalHub hub(program, control);
  // One watch for all ranks that have losses or updates to tell of: they take turns.
  StepWatch watch(options, schedule.microbatches);
  std::mutex watching;
  const std::vector<int> slots = NeverDelayingSlots(program);
  std::vector<RankPlan> plans;
  std::vector<std::unique_ptr<CpuCompute>> computes;
  std::vector<std::unique_ptr<Transport>> transports;
  std::vector<RankBackend> backends;
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    plans.push_back(PlanRank(program, rank, slots, options.first_step()));
    computes.push_back(
        std::make_unique<CpuCompute>(plans.back(), options, schedule.microbatches, corpus, control,
                                     [&](int64_t step, float rate, std::optional<double> norm) {
                                       const std::lock_guard lock(watching);
                                       watch.AddUpdate(step, rate, norm);
                                     }));
    transports.push_back(hub.End(rank));
    const RankBackend inner{computes.back().get(), transports.back().get()};
    backends.push_back(interpose ? interpose(rank, inner, control) : inner);
  }

  WorkerOptions worker;
  worker.message_bytes = static_cast<size_t>(options.microbatch_size) *
                         static_cast<size_t>(options.shape.sequence) *
                         static_cast<size_t>(options.shape.hidden) * sizeof(float);
  worker.first_step = options.first_step();
  worker.norm_values = TensorCount(options.shape);
  std::vector<double> losses(static_cast<size_t>(program.total_microbatches()));
  worker.watch = [&](int64_t microbatch, double loss) {
    const std::lock_guard lock(watching);
    watch.AddLoss(microbatch, loss);
  };
  TrainingResult training;
  training.first_step = options.first_step();
  std::vector<WorkerResult> results;
  try {
    RunOnThreads(program, plans, worker, backends, control, losses, results);
  } catch (const Diverged& diverged) {
    training.diverged = training.first_step + diverged.step;
    losses.resize(static_cast<size_t>((diverged.step + 1) * schedule.microbatches));
    training.step_losses = StepLosses(options, schedule.microbatches, losses);
    training.diverged_where =
        diverged.where.empty()
            ? WhereDiverged(NotFinite(schedule, plans, computes), training.step_losses.back())
            : diverged.where;
    training.trace = CollectTrace(program, results);
    training.trace.tokens_per_step = TokensPerStep(options, schedule.microbatches);
    return training;
  }

  training.trace = CollectTrace(program, results);
  training.trace.tokens_per_step = TokensPerStep(options, schedule.microbatches);
  const auto placed = static_cast<size_t>(schedule.placed_stages());
  std::vector<StageWeights> weights(placed);
  training.peak_activations.resize(placed);
  training.peak_kept.resize(placed);
  training.peak_versions.resize(placed);
  for (size_t rank = 0; rank < plans.size(); ++rank) {
    const WorkerResult& result = results[rank];
    training.peak_handovers.push_back(result.peak_handovers);
    for (size_t i = 0; i < plans[rank].stages.size(); ++i) {
      const auto s = static_cast<size_t>(plans[rank].stages[i].stage);
      weights[s] = {&computes[rank]->layout(i),
                    computes[rank]->FinalWeights(i, result.newest_weights[i])};
      training.peak_activations[s] = result.peak_activations[i];
      training.peak_kept[s] = result.peak_kept[i];
      training.peak_versions[s] = result.peak_versions[i];
    }
  }
  CheckCopiesAgree(schedule, weights);
  weights.resize(static_cast<size_t>(schedule.stages));
  std::vector<const float*> pointers;
  for (const StageWeights& stage : weights) pointers.push_back(stage.weights);
  training.step_losses = StepLosses(options, schedule.microbatches, losses);
  training.weights_sha256 = WeightsSha256(weights);
  if (options.on_final_weights) options.on_final_weights(weights);
  training.validation_tokens = TokensPerStep(options, 1) * options.validation_microbatches;
  SetValidationLoss(options, ValidationLoss(options, corpus, pointers), training);
  return training;
}

}  // namespace pipelag
