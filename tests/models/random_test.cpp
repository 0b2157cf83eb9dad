// The random numbers against known values and the moments of their distributions.
#include "models/random.h"

#include <gtest/gtest.h>

#include <cmath>

namespace pipelag {
namespace {

TEST(Random, IsAPureFunctionOfItsKeys) {
  EXPECT_EQ(RandomBits(1, 2, 3, 4), RandomBits(1, 2, 3, 4));
  EXPECT_NE(RandomBits(1, 2, 3, 4), RandomBits(1, 2, 4, 3));
  EXPECT_NE(RandomBits(1, 2, 3, 4), RandomBits(2, 1, 3, 4));
}

TEST(Random, NormalMatchesKnownQuantiles) {
  const auto bits = [](double u) { return static_cast<uint64_t>(u * 0x1p52) << 12; };
  EXPECT_NEAR(StandardNormal(bits(0.5)), 0.0, 1e-12);
  EXPECT_NEAR(StandardNormal(bits(0.975)), 1.959963984540054, 1e-9);
  EXPECT_NEAR(StandardNormal(bits(0.001)), -3.090232306167813, 1e-9);
  EXPECT_NEAR(StandardNormal(bits(1e-12)), -7.034483825301132, 1e-4);
}

TEST(Random, MomentsOfManyDraws) {
  double sum = 0;
  double squares = 0;
  const int n = 200'000;
  for (int i = 0; i < n; ++i) {
    const double x = StandardNormal(RandomBits(7, static_cast<uint64_t>(i)));
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / n, 0.0, 0.01);
  EXPECT_NEAR(squares / n, 1.0, 0.02);
}

}  // namespace
}  // namespace pipelag
