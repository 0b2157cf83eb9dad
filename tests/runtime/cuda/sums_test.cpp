// What transports add up on a device, at sizes around those of blocks and grids.
#include "runtime/cuda/kernels/sums.h"

#include <gtest/gtest.h>

#include <vector>

#include "models/random.h"
#include "runtime/cuda/kernels/buffers.h"

namespace pipelag::cuda {
namespace {

template <class Value>
void ExpectSums(int64_t count) {
  std::vector<Value> sum;
  std::vector<Value> summand;
  std::vector<Value> expected;
  for (int64_t i = 0; i < count; ++i) {
    sum.push_back(static_cast<Value>(StandardNormal(RandomBits(1, static_cast<uint64_t>(i)))));
    summand.push_back(static_cast<Value>(StandardNormal(RandomBits(2, static_cast<uint64_t>(i)))));
    expected.push_back(sum.back() + summand.back());
  }
  sum.push_back(7);  // behind them
  expected.push_back(7);
  Add(nullptr, sum.data(), summand.data(), count);
  EXPECT_EQ(sum, expected);
}

TEST(DeviceSums, AreThoseOfTheHostToTheLastBit) {
  for (const int64_t count : {0, 1, 255, 256, 257, 5000}) {
    SCOPED_TRACE(count);
    ExpectSums<float>(count);
    ExpectSums<double>(count);
  }
}

/// A shared tensor's norm must not depend on who takes it: its stage or a transport.
TEST(DeviceSums, TakeTheNormOfOneTensorWithTheBitsOfMany) {
  for (const int64_t count : {1, 5, 65536, 65537, 200001}) {
    SCOPED_TRACE(count);
    std::vector<float> values;
    for (int64_t i = 0; i < count; ++i) {
      values.push_back(static_cast<float>(StandardNormal(RandomBits(3, static_cast<uint64_t>(i)))));
    }
    const TensorSpan whole{0, count};
    const NormPlan plan = PlanNorms({&whole, 1});
    ASSERT_EQ(static_cast<int64_t>(plan.pieces.size()), NormPieces(count));
    std::vector<double> sums(plan.pieces.size());
    double of_many = 0;
    SquaredNorms(nullptr, 1, NormPieces(count), plan.pieces.data(), plan.first_pieces.data(),
                 values.data(), sums.data(), &of_many);
    double alone = 0;
    SquaredNorm(nullptr, count, values.data(), sums.data(), &alone);
    EXPECT_EQ(alone, of_many);
    EXPECT_GT(alone, 0);
  }
}

}  // namespace
}  // namespace pipelag::cuda
