// A network small enough to be trained under everything that is registered, and the text for it.
#pragma once

#include <chrono>
#include <string>

#include "runtime/data/grammar.h"
#include "runtime/training.h"

namespace pipelag {

constexpr int64_t kSteps = 7;
constexpr int kMicrobatches = 12;  // shared evenly by 1 to 4 ranks, and enough for two directions

inline const Corpus& TestCorpus() {
  static const Corpus corpus = GrammarCorpus(3, 4, 4000);
  return corpus;
}

inline TrainingOptions Options(const std::string& optimizer, const std::string& correction,
                               int stages) {
  TrainingOptions options;
  options.shape = {.layers = 8, .hidden = 8, .heads = 1, .sequence = 4, .vocabulary = 128};
  options.split = SplitLayers(options.shape.layers, stages);
  options.microbatch_size = 1;
  options.seed = 7;
  options.optimizer.name = optimizer;
  options.optimizer.learning_rate = optimizer == "sgd" ? 0.1f : 0.01f;
  options.correction.name = correction;
  options.learning_rate = {
      .peak = options.optimizer.learning_rate, .warmup_updates = 3, .total_updates = kSteps};
  options.validation_microbatches = 1;
  options.deadline = std::chrono::seconds(60);
  options.poison_freed = true;
  return options;
}

}  // namespace pipelag
