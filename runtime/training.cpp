#include "runtime/training.h"

#include <algorithm>

#include "models/error.h"
#include "runtime/data/sampler.h"
#include "runtime/network/gemm.h"
#include "runtime/network/stage.h"

namespace pipelag {

int64_t TokensPerStep(const TrainingOptions& options, int microbatches) {
  return static_cast<int64_t>(options.microbatch_size) * options.shape.sequence * microbatches;
}

double ValidationLoss(const TrainingOptions& options, const Corpus& corpus,
                      const std::vector<const float*>& stage_weights) {
  UseOneThread();
  const int batch = options.microbatch_size;
  const int sequence = options.shape.sequence;
  const auto tokens_per_microbatch = static_cast<size_t>(batch) * static_cast<size_t>(sequence);
  std::vector<uint8_t> tokens(tokens_per_microbatch);
  std::vector<uint8_t> targets(tokens_per_microbatch);
  const auto boundary = tokens_per_microbatch * static_cast<size_t>(options.shape.hidden);
  std::vector<float> input(boundary);
  std::vector<float> output(boundary);
  double sum = 0;
  for (size_t s = 0; s < options.split.size(); ++s) CHECK(stage_weights[s] != nullptr);
  std::vector<StageNetwork<float>> stages;
  stages.reserve(options.split.size());
  size_t largest = 0;
  for (const LayerRange& range : options.split) {
    stages.emplace_back(options.shape, range, batch);
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
