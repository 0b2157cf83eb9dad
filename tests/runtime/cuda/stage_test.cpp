// Stages on an emulated device against the network on the CPU, and against themselves: in halves,
// computed again, in bf16, with and without products that do more than multiply.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "models/error.h"
#include "tests/runtime/cuda/device_chain.h"
#include "tests/runtime/network_kinds.h"
#include "tests/runtime/stage_chain.h"

namespace pipelag::cuda {
namespace {

constexpr int kBatch = 2;
constexpr float kScale = 0.01f;

/// Rows that are no multiple of a tile, more than one tile of the attention's.
NetworkShape Shaped(size_t kind) {
  return AllKinds({.layers = 2, .hidden = 32, .heads = 4, .sequence = 19, .vocabulary = 61})[kind];
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
  return chain;
}

double Largest(const float* values, int64_t count) {
  double largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::fabs(static_cast<double>(values[i])));
  }
  return largest;
}

/// The largest difference of a tensor by its largest value; a tensor whose gradient vanishes (a
/// shift of all keys changes no softmax) is held against a thousandth of the stage's largest.
double WorstError(const StageLayout& layout, const float* actual, const float* expected) {
  const double floor = 1e-3 * Largest(expected, layout.size());
  double worst = 0;
  for (const StageTensor& tensor : layout.tensors()) {
    const float* of = expected + tensor.offset;
    const double scale = std::max(floor, Largest(of, tensor.elements()));
    for (int64_t i = 0; i < tensor.elements(); ++i) {
      const double error =
          std::fabs(static_cast<double>(actual[tensor.offset + i]) - static_cast<double>(of[i]));
      // Not <: a NaN is an error too.
      if (!(error <= worst * scale)) worst = error / scale;
    }
  }
  return worst;
}

struct Errors {
  double loss = 0;
  double message = 0;
  double gradient = 0;
};

/// Of two micro-batches, whose gradients meet, against the CPU.
Errors Compare(StageChain<float>& reference, DeviceChain& chain, bool halves) {
  Errors errors;
  const NetworkShape& shape = Shaped(0);
  for (uint64_t i = 0; i < 2; ++i) {
    const auto tokens = RandomTokens(shape, kBatch, 7 + i);
    const auto targets = RandomTokens(shape, kBatch, 17 + i);
    const double expected = reference.Forward(tokens.data(), targets.data());
    reference.Backward(tokens.data(), targets.data(), kScale);
    const double loss = chain.Forward(tokens.data(), targets.data());
    if (halves) {
      chain.BackwardInHalves(tokens.data(), targets.data(), kScale);
    } else {
      chain.Backward(tokens.data(), targets.data(), kScale);
    }
    errors.loss = std::max(errors.loss, std::fabs(loss - expected) / expected);
  }
  for (size_t s = 0; s < chain.networks.size(); ++s) {
    errors.gradient = std::max(
        errors.gradient, WorstError(chain.networks[s]->layout(), chain.gradients[s].as<float>(),
                                    reference.gradients[s].data()));
  }
  return errors;
}

double MessageError(const std::vector<float>& expected, DeviceBuffer& actual, bool bf16) {
  double worst = 0;
  const double scale = Largest(expected.data(), static_cast<int64_t>(expected.size()));
  for (size_t i = 0; i < expected.size(); ++i) {
    const float value = bf16 ? ToFloat(actual.as<Bfloat16>()[i]) : actual.as<float>()[i];
    const double error = std::fabs(static_cast<double>(value) - static_cast<double>(expected[i]));
    if (!(error <= worst * scale)) worst = error / scale;
  }
  return worst;
}

/// Kind of AllKinds, stages, whether products fuse.
class Kinds : public testing::TestWithParam<std::tuple<size_t, int, bool>> {};
INSTANTIATE_TEST_SUITE_P(DeviceStage, Kinds,
                         testing::Combine(testing::Range<size_t>(0, 8), testing::Values(1, 2),
                                          testing::Bool()));

TEST_P(Kinds, InFloatAreTheCpus) {
  const auto& [kind, stages, fuses] = GetParam();
  StageChain<float> reference = Reference(Shaped(kind), stages);
  DeviceChain chain = Device(reference, OptionsFor(Shaped(kind), StagePrecision::kFloat32), fuses);
  const Errors errors = Compare(reference, chain, false);
  RecordProperty("loss", std::to_string(errors.loss));
  RecordProperty("gradient", std::to_string(errors.gradient));
  EXPECT_LT(errors.loss, 1e-6);
  EXPECT_LT(errors.gradient, 1e-5);
  if (stages == 2) {
    EXPECT_LT(MessageError(reference.inputs[1], chain.inputs[1], false), 1e-5);
    EXPECT_LT(MessageError(reference.input_gradients[1], chain.input_gradients[1], false), 1e-5);
  }
}

// bf16 has 8 bits: each rounding is off by up to 2^-9, and a gradient passes some twenty roundings
// on its way through two layers. They add up like a random walk, 20^½ · 2^-9 = 0.9 % of a typical
// value; the worst of a tensor's is held against its largest.
TEST_P(Kinds, InBfloat16AreNearTheCpus) {
  const auto& [kind, stages, fuses] = GetParam();
  StageChain<float> reference = Reference(Shaped(kind), stages);
  DeviceChain chain = Device(reference, OptionsFor(Shaped(kind), StagePrecision::kBfloat16), fuses);
  const Errors errors = Compare(reference, chain, true);
  EXPECT_LT(errors.loss, 2e-3);
  EXPECT_LT(errors.gradient, 0.04);
  if (stages == 2) {
    EXPECT_LT(MessageError(reference.inputs[1], chain.inputs[1], true), 0.02);
    EXPECT_LT(MessageError(reference.input_gradients[1], chain.input_gradients[1], true), 0.04);
  }
}

/// Gradients of two micro-batches, B or I and W.
std::vector<DeviceBuffer> Gradients(const StageChain<float>& reference,
                                    const DeviceStageOptions& options, bool fuses, bool halves) {
  DeviceChain chain = Device(reference, options, fuses);
  for (uint64_t i = 0; i < 2; ++i) {
    const auto tokens = RandomTokens(options.shape, kBatch, 7 + i);
    const auto targets = RandomTokens(options.shape, kBatch, 17 + i);
    chain.Forward(tokens.data(), targets.data());
    if (halves) {
      chain.BackwardInHalves(tokens.data(), targets.data(), kScale);
    } else {
      chain.Backward(tokens.data(), targets.data(), kScale);
    }
  }
  return std::move(chain.gradients);
}

class Precisions : public testing::TestWithParam<std::tuple<size_t, StagePrecision>> {};
INSTANTIATE_TEST_SUITE_P(DeviceStage, Precisions,
                         testing::Combine(testing::Values(0, 3, 7),
                                          testing::Values(StagePrecision::kFloat32,
                                                          StagePrecision::kBfloat16)));

TEST_P(Precisions, HalvesAndWhatIsComputedAgainChangeNoBit) {
  const auto& [kind, precision] = GetParam();
  const StageChain<float> reference = Reference(Shaped(kind), 2);
  const auto options = [&](Recompute recompute) {
    return OptionsFor(Shaped(kind), precision, recompute);
  };
  const auto whole = Gradients(reference, options(Recompute::kNone), false, false);
  for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    EXPECT_EQ(Gradients(reference, options(recompute), false, true), whole);
    if (recompute == Recompute::kNone) continue;
    EXPECT_EQ(Gradients(reference, options(recompute), false, false), whole);
  }
}

// A product that takes GELU of what it has not rounded yet does so again.
TEST(DeviceStage, WhatFusedProductsComputeAgainChangesNoBit) {
  const StageChain<float> reference = Reference(Shaped(0), 2);
  const auto options = [&](Recompute recompute) {
    return OptionsFor(Shaped(0), StagePrecision::kBfloat16, recompute);
  };
  const auto whole = Gradients(reference, options(Recompute::kNone), true, false);
  EXPECT_EQ(Gradients(reference, options(Recompute::kNone), true, false), whole);
  EXPECT_EQ(Gradients(reference, options(Recompute::kFull), true, false), whole);
  EXPECT_EQ(Gradients(reference, options(Recompute::kNone), true, true), whole);
}

TEST(DeviceStage, RecomputationKeepsLess) {
  for (const size_t kind : {size_t{0}, size_t{7}}) {
    DeviceChain none(OptionsFor(Shaped(kind), StagePrecision::kBfloat16), 2, true);
    DeviceChain selective(OptionsFor(Shaped(kind), StagePrecision::kBfloat16, Recompute::kSelective), 2,
                          true);
    DeviceChain full(OptionsFor(Shaped(kind), StagePrecision::kBfloat16, Recompute::kFull), 2, true);
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
  const StageChain<float> reference = Reference(Shaped(6), 1);
  auto gradients = Gradients(reference, OptionsFor(Shaped(6), StagePrecision::kFloat32), true, false);
  const StageLayout& layout = reference.networks[0].layout();
  std::vector<bool> used(static_cast<size_t>(layout.size()));
  for (const StageTensor& tensor : layout.tensors()) {
    for (int64_t i = 0; i < tensor.elements(); ++i) {
      used[static_cast<size_t>(tensor.offset + i)] = true;
    }
  }
  int gaps = 0;
  for (size_t i = 0; i < used.size(); ++i) {
    if (used[i]) continue;
    EXPECT_EQ(gradients[0].as<float>()[i], 0) << i;
    ++gaps;
  }
  EXPECT_GT(gaps, 0);
}

TEST(DeviceStage, RefusesWhatItsKernelsCannotDo) {
  NetworkShape shape = Shaped(0);
  shape.hidden = 272;
  shape.heads = 1;
  DeviceStageOptions options = OptionsFor(shape, StagePrecision::kBfloat16);
  options.range = {0, 2};
  try {
    MakeStage(options, MakePlainProducts(true));
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "attention on a GPU has heads of at most 128 channels, not 272");
  }
}

}  // namespace
}  // namespace pipelag::cuda
