// A vocabulary that is no whole number of tensor cores' packs, such as GPT-2's 50257, becomes one
// in memory: what the head's products are of, and that nobody else sees it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "runtime/cuda/stage/stage.h"
#include "runtime/network/stage.h"
#include "tests/runtime/cuda/plain_products.h"
#include "tests/runtime/cuda/products_around.h"
#include "tests/runtime/cuda/test_device.h"
#include "tests/runtime/network_kinds.h"

namespace pipelag::cuda {
namespace {

/// Tells of every product.
class WatchedProducts : public ProductsAround {
 public:
  using ProductsAround::Sizes;
  explicit WatchedProducts(std::vector<Sizes>& seen)
      : ProductsAround(MakePlainProducts(true)), seen_(seen) {}

 private:
  bool See(const Sizes& sizes, const std::function<bool()>& multiply) override {
    seen_.push_back(sizes);
    return multiply();
  }

  std::vector<Sizes>& seen_;
};

/// Whole networks of one layer, the head tied or not.
class OddVocabulary : public testing::TestWithParam<std::tuple<int, bool, StagePrecision>> {};

TEST_P(OddVocabulary, IsPaddedInMemoryAndNowhereElse) {
  const auto& [vocabulary, tied, precision] = GetParam();
  const NetworkShape shape = {
      .layers = 1, .hidden = 16, .heads = 2, .sequence = 8, .vocabulary = vocabulary, .tied = tied};
  constexpr int kBatch = 1;
  std::vector<WatchedProducts::Sizes> seen;
  const auto stage = MakeStage({.shape = shape,
                                .range = {0, 1},
                                .microbatch_size = kBatch,
                                .recompute = Recompute::kNone,
                                .precision = precision,
                                .optimizer = {.name = "sgd", .momentum = 0.0f},
                                .correction = {},
                                .delay = {}},
                               std::make_unique<WatchedProducts>(seen));
  StageChain<float> cpu(shape, 1, kBatch);
  const StageLayout& layout = stage->layout();
  const auto size = static_cast<size_t>(layout.size());
  ASSERT_EQ(size, cpu.weights[0].size());
  DeviceBuffer scratch(stage->scratch_bytes());
  DeviceBuffer state(stage->state_bytes());
  DeviceBuffer weights(stage->weight_bytes());
  DeviceBuffer gradients(stage->gradient_bytes());
  DeviceBuffer activation(stage->activation_bytes());
  DeviceBuffer kept(stage->kept_bytes());
  DeviceBuffer loss(sizeof(double));
  weights.Zero();
  gradients.Zero();
  stage->Begin(nullptr, state.get(), scratch.get());
  stage->Upload(nullptr, cpu.weights[0].data(), weights.get());
  std::vector<Token> tokens = RandomTokens(shape, kBatch, 1);
  std::vector<Token> targets = RandomTokens(shape, kBatch, 2);
  targets.front() = static_cast<Token>(vocabulary - 1);
  const double expected = cpu.Forward(tokens.data(), targets.data());
  cpu.Backward(tokens.data(), targets.data(), 0.25f);
  stage->Forward(nullptr, weights.get(), tokens.data(), nullptr, targets.data(), activation.get(),
                 nullptr, loss.as<double>());
  // Both ways, which add up to twice the gradient.
  stage->Backward(nullptr, weights.get(), activation.get(), tokens.data(), targets.data(), nullptr,
                  0.25f, nullptr, gradients.as<float>());
  stage->BackwardInput(nullptr, weights.get(), activation.get(), targets.data(), nullptr, 0.25f,
                       nullptr, kept.get());
  stage->BackwardWeight(nullptr, activation.get(), tokens.data(), kept.get(), 0.25f,
                        gradients.as<float>());

  int of_head = 0;
  for (const WatchedProducts::Sizes& one : seen) {
    for (const int64_t extent : {one.m, one.n, one.k, one.lda, one.ldb, one.ldd}) {
      EXPECT_EQ(extent % 8, 0) << one.m << " x " << one.k << " by " << one.k << " x " << one.n;
    }
    if (std::max({one.m, one.n, one.k}) >= vocabulary) ++of_head;
  }
  EXPECT_EQ(of_head, 5);

  const double tolerance = precision == StagePrecision::kFloat32 ? 1e-5 : 4e-2;
  EXPECT_NEAR(*loss.as<double>(), expected, tolerance * expected);
  const auto count = static_cast<size_t>(layout.gradient_size());
  ASSERT_EQ(cpu.gradients[0].size(), count);
  double largest = 0;
  for (const float value : cpu.gradients[0]) {
    largest = std::max(largest, static_cast<double>(std::abs(value)));
  }
  for (size_t i = 0; i < count; ++i) {
    ASSERT_NEAR(gradients.as<float>()[i] / 2, cpu.gradients[0][i], tolerance * largest) << i;
  }
  for (size_t i = count; i < gradients.bytes() / sizeof(float); ++i) {
    ASSERT_EQ(gradients.as<float>()[i], 0.0f) << "behind all tensors: " << i - count;
  }
}

INSTANTIATE_TEST_SUITE_P(Emulated, OddVocabulary,
                         testing::Combine(testing::Values(101, 128, 257), testing::Bool(),
                                          testing::Values(StagePrecision::kFloat32,
                                                          StagePrecision::kBfloat16)));

}  // namespace
}  // namespace pipelag::cuda
