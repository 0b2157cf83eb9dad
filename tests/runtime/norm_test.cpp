// Norms, clipping and the course of the learning rate against values worked out by hand.
#include "runtime/optimizer/norm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "models/error.h"
#include "models/random.h"
#include "runtime/optimizer/learning_rate.h"

namespace pipelag {
namespace {

TEST(SquaredNorm, AddsSquaresInDouble) {
  for (const int64_t count : {0, 1, 15, 16, 17, 1000}) {
    std::vector<float> values;
    double expected = 0;
    for (int64_t i = 0; i < count; ++i) {
      values.push_back(static_cast<float>(StandardNormal(RandomBits(1, static_cast<uint64_t>(i)))));
      expected += std::pow(static_cast<double>(values.back()), 2);
    }
    EXPECT_NEAR(SquaredNorm(count, values.data()), expected, 1e-12 * (1 + expected)) << count;
  }
  // In float, the small square would be lost, and the large one would overflow.
  const float values[] = {1e30f, 1.0f};
  EXPECT_DOUBLE_EQ(SquaredNorm(2, values), static_cast<double>(1e30f) * static_cast<double>(1e30f));
}

TEST(ClipFactor, LimitsTheGlobalNorm) {
  EXPECT_EQ(ClipFactor(std::vector<double>{9, 16}, 5), 1.0f);
  EXPECT_EQ(ClipFactor(std::vector<double>{9, 16}, 10), 1.0f);
  EXPECT_EQ(ClipFactor(std::vector<double>{9, 16}, 1), 0.2f);
  EXPECT_EQ(ClipFactor(std::vector<double>{0, 0}, 1), 1.0f);
  EXPECT_THROW(ClipFactor(std::vector<double>{1}, 0), InternalError);
}

TEST(ClipFactor, IsTheSameForEveryPartition) {
  const NetworkShape shape = {
      .layers = 4, .hidden = 8, .heads = 2, .sequence = 4, .vocabulary = 11};
  const auto factor = [&](int stages) {
    std::vector<double> norms;
    for (const LayerRange& range : SplitLayers(shape.layers, stages)) {
      const StageLayout layout(shape, range);
      std::vector<float> values(static_cast<size_t>(layout.size()));
      InitialiseWeights(layout, shape, 1, values.data());
      const auto part = SquaredNorms(layout, values.data());
      norms.insert(norms.end(), part.begin(), part.end());
    }
    EXPECT_EQ(static_cast<int>(norms.size()), TensorCount(shape));
    return ClipFactor(norms, 1e-3);
  };
  const float whole = factor(1);
  EXPECT_LT(whole, 1.0f);
  for (int stages = 2; stages <= 4; ++stages) EXPECT_EQ(factor(stages), whole);
}

TEST(ScaleGradients, ScalesAll) {
  const NetworkShape shape = {.layers = 1, .hidden = 2, .heads = 1, .sequence = 2, .vocabulary = 3};
  const StageLayout layout(shape, {0, 1});
  std::vector<float> values(static_cast<size_t>(layout.size()), 3.0f);
  ScaleGradients(layout, 0.5f, values.data());
  EXPECT_EQ(values, std::vector<float>(values.size(), 1.5f));
}

TEST(LearningRate, WarmsUpThenFollowsTheCosine) {
  const LearningRateCourse course = {
      .peak = 2.0f, .warmup_updates = 4, .total_updates = 12, .final_fraction = 0.25};
  EXPECT_FLOAT_EQ(LearningRate(course, 1), 0.5f);
  EXPECT_FLOAT_EQ(LearningRate(course, 3), 1.5f);
  EXPECT_FLOAT_EQ(LearningRate(course, 4), 2.0f);
  EXPECT_FLOAT_EQ(LearningRate(course, 6),
                  static_cast<float>(0.5 + 1.5 * 0.5 * (1 + std::sqrt(0.5))));
  EXPECT_FLOAT_EQ(LearningRate(course, 8), 1.25f);
  EXPECT_FLOAT_EQ(LearningRate(course, 12), 0.5f);
  EXPECT_FLOAT_EQ(LearningRate(course, 13), 0.5f);
}

TEST(LearningRate, WithoutWarmUpOrWithNothingElse) {
  EXPECT_FLOAT_EQ(
      LearningRate({.peak = 1, .warmup_updates = 0, .total_updates = 2, .final_fraction = 0}, 1),
      0.5f);
  EXPECT_FLOAT_EQ(
      LearningRate({.peak = 1, .warmup_updates = 5, .total_updates = 5, .final_fraction = 0}, 5),
      1.0f);
  EXPECT_FLOAT_EQ(
      LearningRate({.peak = 1, .warmup_updates = 5, .total_updates = 5, .final_fraction = 0}, 6),
      1.0f);
  EXPECT_FLOAT_EQ(
      LearningRate({.peak = 1, .warmup_updates = 0, .total_updates = 9, .final_fraction = 1}, 7),
      1.0f);
}

}  // namespace
}  // namespace pipelag
