// A small training run on an emulated device beside the same on the CPU, loss by loss.
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/optimizer/norm.h"
#include "tests/runtime/cuda/device_chain.h"
#include "tests/runtime/network_kinds.h"
#include "tests/runtime/stage_chain.h"

namespace pipelag::cuda {
namespace {

constexpr int kStages = 2;
constexpr int kBatch = 2;
constexpr int kMicrobatches = 1;
constexpr int kSteps = 20;
constexpr double kMostNorm = 0.5;

NetworkShape TrainedShape(size_t kind) {
  return AllKinds({.layers = 2, .hidden = 16, .heads = 2, .sequence = 6, .vocabulary = 17})[kind];
}

/// Each token follows from the one before it, so that there is something to learn.
void FillSequence(const NetworkShape& shape, uint64_t number, std::vector<Token>& tokens,
                  std::vector<Token>& targets) {
  tokens = RandomTokens(shape, kBatch, number);
  targets.resize(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (i % static_cast<size_t>(shape.sequence) != 0) tokens[i] = targets[i - 1];
    targets[i] = static_cast<Token>((3 * tokens[i] + 1) % shape.vocabulary);
  }
}

struct Trained {
  std::vector<double> losses;
  std::vector<double> norms;
};

float Scale(const NetworkShape& shape) {
  return 1.0f / static_cast<float>(kMicrobatches * kBatch * shape.sequence);
}

/// A batch there and back; its loss.
template <class Chain>
double BothWays(Chain& chain, const NetworkShape& shape, int step) {
  std::vector<Token> tokens, targets;
  double loss = 0;
  for (int i = 0; i < kMicrobatches; ++i) {
    FillSequence(shape, static_cast<uint64_t>(step * kMicrobatches + i), tokens, targets);
    loss += chain.Forward(tokens.data(), targets.data());
    chain.Backward(tokens.data(), targets.data(), Scale(shape));
  }
  return loss * static_cast<double>(Scale(shape));
}

Trained OnCpu(const NetworkShape& shape, const OptimizerOptions& options) {
  StageChain<float> chain(shape, kStages, kBatch);
  std::vector<std::unique_ptr<Optimizer>> optimizers;
  for (const auto& network : chain.networks) {
    optimizers.push_back(MakeOptimizer(options, network.layout()));
  }
  Trained trained;
  for (int step = 0; step < kSteps; ++step) {
    trained.losses.push_back(BothWays(chain, shape, step));
    std::vector<double> norms(static_cast<size_t>(TensorCount(shape)));
    for (size_t s = 0; s < kStages; ++s) {
      const StageLayout& layout = chain.networks[s].layout();
      const auto own = pipelag::SquaredNorms(layout, chain.gradients[s].data());
      for (size_t t = 0; t < own.size(); ++t) {
        norms[static_cast<size_t>(layout.tensors()[t].global_index)] = own[t];
      }
    }
    trained.norms.push_back(GlobalNorm(norms));
    for (size_t s = 0; s < kStages; ++s) {
      float* gradients = chain.gradients[s].data();
      ScaleGradients(chain.networks[s].layout(), pipelag::ClipFactor(norms, kMostNorm), gradients);
      optimizers[s]->Step(gradients, chain.weights[s].data(), chain.weights[s].data(),
                          options.learning_rate, step + 1);
      std::fill(chain.gradients[s].begin(), chain.gradients[s].end(), 0.0f);
    }
  }
  return trained;
}

Trained OnDevice(const NetworkShape& shape, const OptimizerOptions& options,
                 StagePrecision precision, int steps = kSteps) {
  DeviceChain chain({.shape = shape,
                     .range = {},
                     .microbatch_size = kBatch,
                     .recompute = Recompute::kNone,
                     .precision = precision,
                     .optimizer = options,
                     .correction = {},
                     .delay = {}},
                    kStages, true);
  Trained trained;
  for (int step = 0; step < steps; ++step) {
    trained.losses.push_back(BothWays(chain, shape, step));
    std::vector<double> norms(static_cast<size_t>(TensorCount(shape)));
    for (size_t s = 0; s < kStages; ++s) {
      const StageLayout& layout = chain.networks[s]->layout();
      DeviceBuffer own(layout.tensors().size() * sizeof(double));
      chain.networks[s]->SquaredNorms(nullptr, chain.gradients[s].as<float>(), own.as<double>());
      Wait(nullptr);
      for (size_t t = 0; t < layout.tensors().size(); ++t) {
        norms[static_cast<size_t>(layout.tensors()[t].global_index)] = own.as<double>()[t];
      }
    }
    trained.norms.push_back(GlobalNorm(norms));
    DeviceBuffer all(norms.size() * sizeof(double));
    DeviceBuffer factor(sizeof(float));
    std::copy(norms.begin(), norms.end(), all.as<double>());
    for (size_t s = 0; s < kStages; ++s) {
      chain.networks[s]->ClipFactor(nullptr, all.as<double>(), static_cast<int>(norms.size()),
                                    kMostNorm, factor.as<float>());
      chain.networks[s]->Update(nullptr, chain.gradients[s].as<float>(), chain.weights[s].get(),
                                chain.weights[s].get(), options.learning_rate, step + 1, nullptr,
                                factor.as<float>());
      Wait(nullptr);
    }
  }
  return trained;
}

void ExpectTheCpus(const NetworkShape& shape, const OptimizerOptions& options) {
  const Trained expected = OnCpu(shape, options);
  const Trained actual = OnDevice(shape, options, StagePrecision::kFloat32);
  ASSERT_LT(expected.losses.back(), expected.losses.front() - 0.5);
  EXPECT_TRUE(std::any_of(expected.norms.begin(), expected.norms.end(),
                          [](double norm) { return norm > kMostNorm; }));
  for (size_t i = 0; i < expected.losses.size(); ++i) {
    EXPECT_NEAR(actual.losses[i], expected.losses[i], 1e-4 * expected.losses[i]) << "step " << i;
    EXPECT_NEAR(actual.norms[i], expected.norms[i], 1e-3 * expected.norms[i]) << "step " << i;
  }
}

TEST(DeviceTraining, HasTheCpusLosses) {
  ExpectTheCpus(TrainedShape(7), {.name = "adamw", .learning_rate = 0.01f});
}

TEST(DeviceTraining, HasTheCpusLossesWithMuon) {
  ExpectTheCpus(TrainedShape(0), {.name = "muon", .learning_rate = 0.01f});
}

TEST(DeviceTraining, InBfloat16LearnsAsMuchAndTwiceTheSame) {
  const OptimizerOptions options = {.name = "adamw", .learning_rate = 0.01f};
  NetworkShape shape = TrainedShape(0);
  shape.heads = 1;
  const Trained expected = OnCpu(shape, options);
  const Trained actual = OnDevice(shape, options, StagePrecision::kBfloat16, 8);
  EXPECT_NEAR(actual.losses.back(), expected.losses[7], 0.03 * expected.losses[7]);
  const Trained again = OnDevice(shape, options, StagePrecision::kBfloat16, 2);
  for (size_t i = 0; i < again.losses.size(); ++i) {
    EXPECT_EQ(again.losses[i], actual.losses[i]);
    EXPECT_EQ(again.norms[i], actual.norms[i]);
  }
}

}  // namespace
}  // namespace pipelag::cuda
