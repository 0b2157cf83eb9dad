// Stages on an emulated device against the network on the CPU, and against themselves: in halves,
// computed again, in bf16, with and without products that do more than multiply.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "models/error.h"
#include "tests/runtime/cuda/device_chain.h"
#include "tests/runtime/network_kinds.h"
#include "tests/runtime/stage_chain.h"

namespace pipelag::cuda {
namespace {

constexpr int kBatch = 2;
constexpr float kScale = 0.01f;

/// Sizes that are no multiples of tiles.
NetworkShape Shaped(size_t kind) {
  return AllKinds({.layers = 2, .hidden = 32, .heads = 4, .sequence = 11, .vocabulary = 61})[kind];
}

DeviceStageOptions OptionsFor(const NetworkShape& shape, StagePrecision precision,
                              Recompute recompute = Recompute::kNone) {
  return {.shape = shape,
          .range = {},
          .microbatch_size = kBatch,
          .recompute = recompute,
          .precision = precision,
          .optimizer = {},
          .correction = {},
          .delay = {}};
}

StageChain<float> Reference(const NetworkShape& shape, int stages) {
  StageChain<float> chain(shape, stages, kBatch);
  Shake(chain, 0.1);
  return chain;
}

DeviceChain Device(const StageChain<float>& reference, const DeviceStageOptions& options,
                   bool fuses) {
  DeviceChain chain(options, static_cast<int>(reference.networks.size()), fuses);
  for (size_t s = 0; s < chain.networks.size(); ++s) {
    chain.networks[s]->Upload(nullptr, reference.weights[s].data(), chain.weights[s].get());
  }
  Wait(nullptr);
  return chain;
}

double Largest(const float* values, int64_t count) {
  double largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::fabs(static_cast<double>(values[i])));
  }
  return largest;
}

/// The largest difference of a tensor by its largest value. A shift of all keys changes no softmax:
/// the gradient of their bias is what rounding leaves of larger numbers, and is held against the
/// stage's largest.
double WorstError(const StageLayout& layout, const float* actual, const float* expected) {
  double worst = 0;
  for (const StageTensor& tensor : layout.tensors()) {
    const float* of = expected + tensor.offset;
    const double scale = tensor.name.ends_with("k_proj.bias") ? Largest(expected, layout.size())
                                                              : Largest(of, tensor.elements());
    for (int64_t i = 0; i < tensor.elements(); ++i) {
      const double error =
          std::fabs(static_cast<double>(actual[tensor.offset + i]) - static_cast<double>(of[i]));
      // Not >: a NaN is an error too.
      if (!(error <= worst * scale)) worst = error / scale;
    }
  }
  return worst;
}

double MessageError(const std::vector<float>& expected, DeviceBuffer& actual,
                    StagePrecision precision) {
  double worst = 0;
  const double scale = Largest(expected.data(), static_cast<int64_t>(expected.size()));
  for (size_t i = 0; i < expected.size(); ++i) {
    const float value = precision == StagePrecision::kFloat32 ? actual.as<float>()[i]
                                                              : ToFloat(actual.as<Bfloat16>()[i]);
    const double error = std::fabs(static_cast<double>(value) - static_cast<double>(expected[i]));
    if (!(error <= worst * scale)) worst = error / scale;
  }
  return worst;
}

struct Errors {
  double loss = 0;
  double message = 0;
  double message_gradient = 0;
  double gradient = 0;
};

/// Of one micro-batch, against the CPU.
Errors ErrorsOf(const NetworkShape& shape, int stages, StagePrecision precision, bool fuses) {
  StageChain<float> reference = Reference(shape, stages);
  DeviceChain chain = Device(reference, OptionsFor(shape, precision), fuses);
  const auto tokens = RandomTokens(shape, kBatch, 7);
  const auto targets = RandomTokens(shape, kBatch, 17);
  const double expected = reference.Forward(tokens.data(), targets.data());
  reference.Backward(tokens.data(), targets.data(), kScale);
  const double loss = chain.Forward(tokens.data(), targets.data());
  chain.Backward(tokens.data(), targets.data(), kScale);
  Errors errors = {.loss = std::fabs(loss - expected) / expected};
  for (size_t s = 0; s < chain.networks.size(); ++s) {
    errors.gradient = std::max(
        errors.gradient, WorstError(chain.networks[s]->layout(), chain.gradients[s].as<float>(),
                                    reference.gradients[s].data()));
    if (s == 0) continue;
    errors.message = MessageError(reference.inputs[s], chain.inputs[s], precision);
    errors.message_gradient =
        MessageError(reference.input_gradients[s], chain.input_gradients[s], precision);
  }
  return errors;
}

/// Of AllKinds.
class DeviceKinds : public testing::TestWithParam<size_t> {};
INSTANTIATE_TEST_SUITE_P(DeviceStage, DeviceKinds, testing::Range<size_t>(0, 8));

TEST_P(DeviceKinds, InFloatAreTheCpus) {
  const bool fuses = GetParam() % 2 == 0;
  const Errors errors = ErrorsOf(Shaped(GetParam()), 2, StagePrecision::kFloat32, fuses);
  EXPECT_LT(errors.loss, 1e-6);
  EXPECT_LT(errors.message, 1e-5);
  EXPECT_LT(errors.message_gradient, 1e-5);
  EXPECT_LT(errors.gradient, 1e-5);
}

// Also with sequences longer than a tile of attention.
TEST(DeviceStage, OfThreeIsTheCpus) {
  NetworkShape shape = Shaped(0);
  shape.layers = 3;
  shape.sequence = 37;
  const Errors errors = ErrorsOf(shape, 3, StagePrecision::kFloat32, false);
  EXPECT_LT(errors.loss, 1e-6);
  EXPECT_LT(errors.gradient, 1e-5);
}

// bf16 has 8 bits: each rounding is off by up to 2^-9, and a gradient passes some twenty roundings
// on its way through two layers. They add up like a random walk, 20^½ · 2^-9 = 0.9 % of a typical
// value; the worst of a tensor's is held against its largest.
TEST(DeviceStage, InBfloat16IsNearTheCpus) {
  for (const size_t kind : {size_t{0}, size_t{7}}) {
    const Errors errors = ErrorsOf(Shaped(kind), 2, StagePrecision::kBfloat16, kind == 0);
    EXPECT_LT(errors.loss, 2e-3) << kind;
    EXPECT_LT(errors.message, 0.02) << kind;
    EXPECT_LT(errors.message_gradient, 0.04) << kind;
    EXPECT_LT(errors.gradient, 0.04) << kind;
  }
}

enum class Pass { kWhole, kHalves };

std::vector<DeviceBuffer> Gradients(const StageChain<float>& reference,
                                    const DeviceStageOptions& options, bool fuses, Pass pass) {
  DeviceChain chain = Device(reference, options, fuses);
  const auto tokens = RandomTokens(options.shape, kBatch, 7);
  const auto targets = RandomTokens(options.shape, kBatch, 17);
  chain.Forward(tokens.data(), targets.data());
  if (pass == Pass::kHalves) {
    chain.BackwardInHalves(tokens.data(), targets.data(), kScale);
  } else {
    chain.Backward(tokens.data(), targets.data(), kScale);
  }
  return std::move(chain.gradients);
}

/// A kind, its stages, and how it computes.
struct Setting {
  size_t kind;
  int stages;
  StagePrecision precision;
  bool fuses;
};
class DeviceSettings : public testing::TestWithParam<Setting> {};
INSTANTIATE_TEST_SUITE_P(DeviceStage, DeviceSettings,
                         testing::Values(Setting{0, 2, StagePrecision::kFloat32, true},
                                         Setting{7, 1, StagePrecision::kFloat32, true},
                                         Setting{0, 1, StagePrecision::kBfloat16, false},
                                         Setting{7, 1, StagePrecision::kBfloat16, true}));

TEST_P(DeviceSettings, HalvesAndWhatIsComputedAgainChangeNoBit) {
  const auto& [kind, stages, precision, fuses] = GetParam();
  NetworkShape shape = Shaped(kind);
  shape.layers = stages;
  shape.heads = shape.key_value_heads > 0 ? 2 : 1;
  shape.key_value_heads = 1;
  const StageChain<float> reference = Reference(shape, stages);
  const auto gradients = [&, precision = precision, fuses = fuses](Recompute recompute, Pass pass) {
    return Gradients(reference, OptionsFor(shape, precision, recompute), fuses, pass);
  };
  const auto whole = gradients(Recompute::kNone, Pass::kWhole);
  EXPECT_TRUE(gradients(Recompute::kNone, Pass::kHalves) == whole);
  for (const Recompute recompute : {Recompute::kSelective, Recompute::kFull}) {
    EXPECT_TRUE(gradients(recompute, Pass::kWhole) == whole);
    EXPECT_TRUE(gradients(recompute, Pass::kHalves) == whole);
  }
}

// A product that takes GELU of what it has not rounded yet does so again.
TEST(DeviceStage, WhatFusedProductsComputeAgainChangesNoBit) {
  NetworkShape shape = Shaped(0);
  shape.layers = 1;
  shape.heads = 1;
  const StageChain<float> reference = Reference(shape, 1);
  const auto gradients = [&](Recompute recompute, Pass pass) {
    return Gradients(reference, OptionsFor(shape, StagePrecision::kBfloat16, recompute), true,
                     pass);
  };
  const auto whole = gradients(Recompute::kNone, Pass::kWhole);
  EXPECT_TRUE(gradients(Recompute::kFull, Pass::kWhole) == whole);
  EXPECT_TRUE(gradients(Recompute::kNone, Pass::kHalves) == whole);
}

// Two micro-batches into one accumulator are the sum of two alone.
TEST(DeviceStage, GradientsOfMicrobatchesAddUp) {
  NetworkShape shape = Shaped(0);
  shape.layers = 1;
  const StageChain<float> reference = Reference(shape, 1);
  DeviceChain chain = Device(reference, OptionsFor(shape, StagePrecision::kFloat32), true);
  std::vector<std::vector<float>> sums;
  for (const std::vector<uint64_t>& seeds : {std::vector<uint64_t>{7, 8}, {7}, {8}}) {
    chain.gradients[0].Zero();
    for (const uint64_t seed : seeds) {
      const auto tokens = RandomTokens(shape, kBatch, seed);
      chain.Forward(tokens.data(), tokens.data());
      chain.Backward(tokens.data(), tokens.data(), kScale);
    }
    const auto* values = chain.gradients[0].as<float>();
    sums.emplace_back(values, values + chain.networks[0]->layout().size());
  }
  for (size_t i = 0; i < sums[1].size(); ++i) sums[1][i] += sums[2][i];
  EXPECT_LT(WorstError(chain.networks[0]->layout(), sums[0].data(), sums[1].data()), 1e-6);
}

// One stage joins both gradients of a tied embedding; of two, each has one.
TEST(DeviceStage, TiedHeadsAreTheCpus) {
  NetworkShape shape = Shaped(0);
  shape.tied = true;
  for (const int stages : {1, 2}) {
    StageChain<float> reference = Reference(shape, stages);
    DeviceChain chain = Device(reference, OptionsFor(shape, StagePrecision::kFloat32), true);
    const auto tokens = RandomTokens(shape, kBatch, 7);
    const auto targets = RandomTokens(shape, kBatch, 17);
    reference.Forward(tokens.data(), targets.data());
    reference.Backward(tokens.data(), targets.data(), kScale);
    chain.Forward(tokens.data(), targets.data());
    chain.BackwardInHalves(tokens.data(), targets.data(), kScale);
    for (size_t s = 0; s < chain.networks.size(); ++s) {
      const StageLayout& layout = chain.networks[s]->layout();
      ASSERT_EQ(layout.joins(), stages == 1);
      ASSERT_NE(layout.tied(), nullptr);
      JoinTied(layout, reference.gradients[s].data());
      auto* gradients = chain.gradients[s].as<float>();
      chain.networks[s]->JoinTied(nullptr, gradients);
      Wait(nullptr);
      EXPECT_LT(WorstError(layout, gradients, reference.gradients[s].data()), 1e-5) << stages;
      chain.networks[s]->Update(nullptr, gradients, chain.weights[s].get(), chain.weights[s].get(),
                                0.01f, 1, nullptr, nullptr);
      Wait(nullptr);
      EXPECT_EQ(Largest(gradients, layout.gradient_size()), 0) << stages;
    }
  }
}

TEST(DeviceStage, RecomputationKeepsLess) {
  for (const size_t kind : {size_t{0}, size_t{7}}) {
    DeviceChain none(OptionsFor(Shaped(kind), StagePrecision::kBfloat16), 2, true);
    DeviceChain selective(
        OptionsFor(Shaped(kind), StagePrecision::kBfloat16, Recompute::kSelective), 2, true);
    DeviceChain full(OptionsFor(Shaped(kind), StagePrecision::kBfloat16, Recompute::kFull), 2,
                     true);
    const size_t message = none.networks[0]->message_bytes();
    EXPECT_EQ(full.networks[0]->activation_bytes(), message);
    EXPECT_EQ(full.networks[1]->activation_bytes(), 2 * message);
    for (size_t s = 0; s < 2; ++s) {
      EXPECT_LT(selective.networks[s]->activation_bytes(), none.networks[s]->activation_bytes());
      EXPECT_LT(full.networks[s]->activation_bytes(), selective.networks[s]->activation_bytes());
    }
  }
}

TEST(DeviceStage, GapsOfGradientsStayZero) {
  NetworkShape shape = Shaped(6);
  shape.layers = 1;
  const StageChain<float> reference = Reference(shape, 1);
  auto gradients =
      Gradients(reference, OptionsFor(shape, StagePrecision::kFloat32), true, Pass::kWhole);
  const StageLayout& layout = reference.networks[0].layout();
  std::vector<float> values(gradients[0].as<float>(), gradients[0].as<float>() + layout.size());
  for (const StageTensor& tensor : layout.tensors()) {
    EXPECT_GT(Largest(values.data() + tensor.offset, tensor.elements()), 0) << tensor.name;
    std::fill_n(values.begin() + tensor.offset, tensor.elements(), 0.0f);
  }
  EXPECT_EQ(Largest(values.data(), layout.size()), 0);
}

TEST(DeviceStage, RefusesWhatItsKernelsCannotDo) {
  NetworkShape shape = Shaped(0);
  shape.hidden = 272;
  shape.heads = 1;
  DeviceStageOptions options = OptionsFor(shape, StagePrecision::kBfloat16);
  options.range = {0, 2};
  try {
    MakeStage(options, MakeTestProducts(true));
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "attention on a GPU has heads of at most 128 channels, not 272");
  }
}

}  // namespace
}  // namespace pipelag::cuda
