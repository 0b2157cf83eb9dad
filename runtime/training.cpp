#include "runtime/training.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "models/error.h"
#include "runtime/checkpoint/writer.h"
#include "runtime/data/sampler.h"
#include "runtime/network/gemm.h"
#include "runtime/network/stage.h"

namespace pipelag {

namespace {

double LossLimit(const NetworkShape& shape) { return std::log(shape.vocabulary) + 1; }

}  // namespace

int64_t TokensPerStep(const TrainingOptions& options, int microbatches) {
  return static_cast<int64_t>(options.microbatch_size) * options.shape.sequence * microbatches;
}

double ValidationLoss(const TrainingOptions& options, const Corpus& corpus,
                      const std::vector<const float*>& stage_weights) {
  PrepareThread();
  const int batch = options.microbatch_size;
  const int sequence = options.shape.sequence;
  const auto tokens_per_microbatch = static_cast<size_t>(batch) * static_cast<size_t>(sequence);
  std::vector<Token> tokens(tokens_per_microbatch);
  std::vector<Token> targets(tokens_per_microbatch);
  const auto boundary = tokens_per_microbatch * static_cast<size_t>(options.shape.hidden);
  std::vector<float> input(boundary);
  std::vector<float> output(boundary);
  double sum = 0;
  for (size_t s = 0; s < options.split.size(); ++s) CHECK(stage_weights[s] != nullptr);
  std::vector<StageNetwork<float>> stages;
  stages.reserve(options.split.size());
  size_t largest = 0;
  for (const LayerRange& range : options.split) {
    stages.emplace_back(options.shape, range, batch, Recompute::kNone, options.precision);
    largest = std::max(largest, static_cast<size_t>(stages.back().activation_elements()));
  }
  std::vector<float> activation(largest);
  for (int64_t i = 0; i < options.validation_microbatches; ++i) {
    FillValidation(corpus, i, options.validation_microbatches, batch, sequence, tokens.data(),
                   targets.data());
    for (size_t s = 0; s < stages.size(); ++s) {
      sum += stages[s].Forward(stage_weights[s], tokens.data(), input.data(), targets.data(),
                               activation.data(), output.data());
      input.swap(output);
    }
  }
  return sum / static_cast<double>(options.validation_microbatches) /
         static_cast<double>(tokens_per_microbatch);
}

bool HasDiverged(const NetworkShape& shape, int64_t batches, std::span<const double> losses) {
  constexpr int64_t kGrace = 20;
  if (!std::isfinite(losses.back())) return true;
  if (batches < kGrace + kLossWindow || losses.size() < kLossWindow) return false;
  double sum = 0;
  for (const double loss : losses.last(kLossWindow)) sum += loss;
  return sum / kLossWindow > LossLimit(shape);
}

Diverged::Diverged(int64_t at, int stage, const std::string& tensor)
    : step(at), where(fmt::format("stage {}: {} is not finite after the update", stage, tensor)) {}

std::string FirstNotFinite(const StageLayout& layout, const float* weights) {
  for (const StageTensor& place : layout.tensors()) {
    const float* values = weights + place.offset;
    const auto finite = [](float value) { return std::isfinite(value); };
    if (!std::all_of(values, values + place.elements(), finite)) return place.name;
  }
  return "";
}

std::string WhereDiverged(const std::optional<Breaking>& seen, const Diverged& diverged,
                          const std::vector<std::string>& not_finite, double loss,
                          int64_t first_step) {
  if (seen && seen->step == diverged.step) return seen->where;
  if (seen) return fmt::format("{}, in step {}", seen->where, first_step + seen->step + 1);
  if (!diverged.where.empty()) return diverged.where;
  for (size_t stage = 0; stage < not_finite.size(); ++stage) {
    if (not_finite[stage].empty()) continue;
    return fmt::format("stage {}: {} is not finite", stage, not_finite[stage]);
  }
  return fmt::format(
      "stage {}: the loss is {}", not_finite.size() - 1,
      std::isfinite(loss)
          ? fmt::format("{:.4f}, and the mean of the last {} above ln V + 1", loss, kLossWindow)
          : "not finite");
}

void BeginVersions(const TrainingOptions& options, int stage, const StageLayout& layout,
                   const std::vector<float*>& versions) {
  for (size_t age = versions.size(); age-- > 0;) {
    if (options.start) {
      options.start->ReadVersion(layout, static_cast<int64_t>(age), versions[age]);
    } else {
      CHECK(age == 0);
      InitialiseWeights(layout, options.shape, options.seed, versions[age]);
    }
    if (options.checkpoints != nullptr && stage >= 0) {
      const int64_t version = options.first_step() - static_cast<int64_t>(age);
      options.checkpoints->Begin(stage, version, layout, versions[age]);
    }
  }
}

void BeginStage(const TrainingOptions& options, int stage, Optimizer& optimizer,
                const std::vector<float*>& versions) {
  BeginVersions(options, stage, optimizer.layout(), versions);
  if (options.start) options.start->ReadState(optimizer);
}

StepWatch::StepWatch(const TrainingOptions& options, int microbatches)
    : options_(options),
      microbatches_(microbatches),
      tokens_(static_cast<double>(TokensPerStep(options, microbatches))) {
  if (options.start) before_ = options.start->LatestLosses();
}

void StepWatch::AddLoss(int64_t microbatch, double loss_sum) {
  Batch& batch = open_[microbatch / microbatches_];
  batch.losses.resize(static_cast<size_t>(microbatches_));
  batch.losses[static_cast<size_t>(microbatch % microbatches_)] = loss_sum;
  ++batch.seen;
  while (!open_.empty()) {
    const auto& [step, first] = *open_.begin();
    if (step != static_cast<int64_t>(step_losses_.size()) || first.seen < microbatches_) break;
    step_losses_.push_back(std::accumulate(first.losses.begin(), first.losses.end(), 0.0) /
                           tokens_);
    open_.erase(open_.begin());
    const auto done = static_cast<int64_t>(step_losses_.size());
    if (HasDiverged(options_.shape, options_.first_step() + done,
                    LatestLosses(done - 1, kLossWindow))) {
      throw Diverged(done - 1);
    }
  }
  Report();
}

void StepWatch::AddUpdate(int64_t step, float learning_rate, std::optional<double> gradient_norm) {
  updated_[step] = {.steps_done = options_.first_step() + step + 1,
                    .learning_rate = learning_rate,
                    .gradient_norm = gradient_norm};
  Report();
}

void StepWatch::Report() {
  while (!updated_.empty()) {
    auto [step, report] = *updated_.begin();
    if (step != reported_ || step >= static_cast<int64_t>(step_losses_.size())) return;
    report.loss = step_losses_[static_cast<size_t>(step)];
    updated_.erase(updated_.begin());
    ++reported_;
    if (options_.on_step) options_.on_step(report);
    if (options_.checkpoints != nullptr) {
      options_.checkpoints->Reported(report.steps_done, LatestLosses(step, kLossWindow - 1));
    }
  }
}

std::vector<double> StepWatch::LatestLosses(int64_t step, int64_t count) const {
  std::vector<double> losses;
  for (int64_t at = step - count + 1; at <= step; ++at) {
    const int64_t behind = static_cast<int64_t>(before_.size()) + at;
    if (at >= 0) {
      losses.push_back(step_losses_[static_cast<size_t>(at)]);
    } else if (behind >= 0) {
      losses.push_back(before_[static_cast<size_t>(behind)]);
    }
  }
  return losses;
}

void SetValidationLoss(const TrainingOptions& options, double loss, TrainingResult& result) {
  if (!(loss <= LossLimit(options.shape))) {
    result.diverged = result.first_step + static_cast<int64_t>(result.step_losses.size());
    result.diverged_where = fmt::format("the final weights: their validation loss is {}", loss);
    result.weights_sha256.clear();
    return;
  }
  result.validation_loss = loss;
}

std::vector<double> StepLosses(const TrainingOptions& options, int microbatches,
                               const std::vector<double>& microbatch_sums) {
  const auto tokens = static_cast<double>(TokensPerStep(options, microbatches));
  std::vector<double> losses;
  for (size_t i = 0; i < microbatch_sums.size(); i += static_cast<size_t>(microbatches)) {
    double sum = 0;
    for (size_t k = 0; k < static_cast<size_t>(microbatches); ++k) sum += microbatch_sums[i + k];
    losses.push_back(sum / tokens);
  }
  return losses;
}

}  // namespace pipelag
