// What transports add up on a device, at sizes around those of blocks and grids.
#include "runtime/cuda/kernels/sums.h"

#include <gtest/gtest.h>

#include <vector>

#include "models/random.h"

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

}  // namespace
}  // namespace pipelag::cuda
