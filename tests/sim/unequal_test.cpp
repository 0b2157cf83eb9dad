// Micro-batches of unequal cost.
#include "sim/unequal.h"

#include <gtest/gtest.h>

#include <numeric>

#include "models/error.h"
#include "tests/sim/case.h"

namespace pipelag {
namespace {

TEST(UnequalMicrobatches, HaveTheMeanOfEqualOnes) {
  const std::vector<double> factors = MicrobatchFactors(64, 0.5, 7);
  EXPECT_NEAR(std::accumulate(factors.begin(), factors.end(), 0.0), 64, 1e-9);
  EXPECT_EQ(factors, MicrobatchFactors(64, 0.5, 7));
  EXPECT_NE(factors, MicrobatchFactors(64, 0.5, 8));
  for (const double factor : MicrobatchFactors(8, 0, 1)) EXPECT_EQ(factor, 1);
  EXPECT_THROW(MicrobatchFactors(8, -1, 1), Error);
}

int64_t Makespan(const std::vector<double>& factors, int ranks) {
  GeneratorOptions options;
  options.ranks = ranks;
  options.microbatches = static_cast<int>(factors.size());
  const Program program(Generate("1f1b", options), 1);
  Case uniform;
  uniform.p = ranks;
  ActionTimes times(program, CostsOf(uniform, ranks));
  MakeUnequal(program, factors, times);
  return Simulate(program, times).metrics.makespan.count();
}

TEST(UnequalMicrobatches, OfOneStageTakeTheirSum) {
  EXPECT_EQ(Makespan({0.5, 1.5, 1, 1}, 1), 4 * 3000);
  EXPECT_EQ(Makespan({2, 1, 1, 1}, 1), 5 * 3000);
}

TEST(UnequalMicrobatches, OfAPipelineTakeLongerThanEqualOnes) {
  const int64_t equal = Makespan(std::vector<double>(16, 1), 4);
  EXPECT_EQ(equal, (16 + 3) * 3000);
  EXPECT_GT(Makespan(MicrobatchFactors(16, 0.4, 1), 4), equal);
}

}  // namespace
}  // namespace pipelag
