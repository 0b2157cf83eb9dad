// Network, data and optimizer together: a small model must learn the built-in grammar, and the
// grammar's entropy must be a floor.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "runtime/data/grammar.h"
#include "runtime/data/sampler.h"
#include "runtime/optimizer/learning_rate.h"
#include "runtime/optimizer/norm.h"
#include "runtime/optimizer/optimizer.h"
#include "tests/runtime/stage_chain.h"

namespace pipelag {
namespace {

constexpr int kBatch = 8;

NetworkShape Shape() {
  return {.layers = 2, .hidden = 32, .heads = 2, .sequence = 32, .vocabulary = 256};
}

double ValidationLoss(StageChain<float>& chain, const Corpus& corpus) {
  constexpr int kCount = 8;
  std::vector<Token> tokens(kBatch * 32), targets(kBatch * 32);
  double loss = 0;
  for (int i = 0; i < kCount; ++i) {
    FillValidation(corpus, i, kCount, kBatch, Shape().sequence, tokens.data(), targets.data());
    loss += chain.Forward(tokens.data(), targets.data());
  }
  return loss / static_cast<double>(kCount * tokens.size());
}

class Training : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Optimizer, Training, testing::Values("adamw", "muon", "sgd"));

TEST_P(Training, LearnsTheGrammar) {
  const Corpus corpus = GrammarCorpus(1, Shape().sequence);
  StageChain<float> chain(Shape(), 2, kBatch);
  OptimizerOptions options;
  options.name = GetParam();
  options.learning_rate = GetParam() == "sgd" ? 0.3f : 0.01f;
  std::vector<std::unique_ptr<Optimizer>> optimizers;
  for (const auto& network : chain.networks) {
    optimizers.push_back(MakeOptimizer(options, network.layout()));
  }
  constexpr int kUpdates = 150;
  const LearningRateCourse course = {.peak = options.learning_rate,
                                     .warmup_updates = 10,
                                     .total_updates = kUpdates,
                                     .final_fraction = 0.1};
  std::vector<Token> tokens(kBatch * 32), targets(kBatch * 32);
  const float scale = 1.0f / static_cast<float>(tokens.size());
  EXPECT_NEAR(ValidationLoss(chain, corpus), std::log(256), 0.1);
  for (int n = 1; n <= kUpdates; ++n) {
    FillMicrobatch(corpus, 1, n - 1, kBatch, Shape().sequence, tokens.data(), targets.data());
    for (auto& gradients : chain.gradients) std::fill(gradients.begin(), gradients.end(), 0.0f);
    chain.Forward(tokens.data(), targets.data());
    chain.Backward(tokens.data(), targets.data(), scale);
    std::vector<double> norms;
    for (size_t s = 0; s < 2; ++s) {
      const auto part = SquaredNorms(chain.networks[s].layout(), chain.gradients[s].data());
      norms.insert(norms.end(), part.begin(), part.end());
    }
    const float factor = ClipFactor(norms, 1.0);
    for (size_t s = 0; s < 2; ++s) {
      ScaleGradients(chain.networks[s].layout(), factor, chain.gradients[s].data());
      optimizers[s]->Step(chain.gradients[s].data(), chain.weights[s].data(),
                          chain.weights[s].data(), LearningRate(course, n), n);
    }
  }
  const double loss = ValidationLoss(chain, corpus);
  RecordProperty("validation_loss", std::to_string(loss));
  EXPECT_LT(loss, 2.2);
  EXPECT_GT(loss, *corpus.entropy_rate);
}

}  // namespace
}  // namespace pipelag
