// What to train and what came of it: shared by every way of running.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "models/network.h"
#include "runtime/data/corpus.h"
#include "runtime/optimizer/learning_rate.h"
#include "runtime/optimizer/optimizer.h"
#include "traces/trace.h"

namespace pipelag {

struct TrainingOptions {
  NetworkShape shape;
  std::vector<LayerRange> split;  ///< one range per stage, covering all layers
  int microbatch_size = 8;        ///< sequences per micro-batch
  uint64_t seed = 1;              ///< of the weights and of the order of the data
  OptimizerOptions optimizer;
  LearningRateCourse learning_rate;  ///< counts real updates
  std::optional<double> clip_norm;   ///< of the global gradient
  int64_t validation_microbatches = 32;
  Nanoseconds deadline = std::chrono::seconds(120);  ///< of one wait for another rank
  /// Called after every update of the last stage, on whichever thread does it, with the number of
  /// steps done. Must not throw.
  std::function<void(int64_t)> on_step = {};
};

/// Losses are means over tokens, in nats.
struct TrainingResult {
  std::vector<double> step_losses;  ///< of each batch, at the weights its gradient was taken at
  double validation_loss = 0;       ///< of the final weights
  int64_t validation_tokens = 0;
  std::string weights_sha256;  ///< of the final weights, whatever the partition
  Trace trace;
  std::vector<int> peak_activations;  ///< per stage, as counted while running
  std::vector<int> peak_versions;

  double final_loss() const { return step_losses.back(); }
};

/// Tokens of one step.
int64_t TokensPerStep(const TrainingOptions& options, int microbatches);

/// The loss of final weights, stage by stage, over evenly spaced windows of corpus.validation.
double ValidationLoss(const TrainingOptions& options, const Corpus& corpus,
                      const std::vector<const float*>& stage_weights);

/// Means over tokens out of sums per micro-batch.
std::vector<double> StepLosses(const TrainingOptions& options, int microbatches,
                               const std::vector<double>& microbatch_sums);

}  // namespace pipelag
