// Goodput under failures: closed form against a play event by event, and the best interval.
#include "sim/faults.h"

#include <gtest/gtest.h>

#include <cmath>

#include "models/error.h"

namespace pipelag {
namespace {

Nanoseconds Seconds(double seconds) { return Nanoseconds{static_cast<int64_t>(seconds * 1e9)}; }

FaultModel Model(int ranks, double mtbf_hours, double interval, double cost, double restart) {
  return {ranks, Seconds(3600 * mtbf_hours), Seconds(interval), Seconds(cost), Seconds(restart)};
}

TEST(Faults, PlayAgreesWithTheClosedForm) {
  uint64_t seed = 0;
  for (const FaultModel& model :
       {Model(1, 1, 600, 30, 60), Model(64, 100, 300, 20, 120), Model(1024, 5000, 1800, 60, 600),
        Model(16, 4, 900, 10, 0), Model(8, 8, 1200, 0, 1800), Model(512, 200, 900, 100, 300)}) {
    const double expected = ExpectedGoodput(model);
    const FaultRun run = SimulateFaults(model, 20'000, ++seed);
    EXPECT_LT(run.standard_error, 0.01 * expected);
    EXPECT_NEAR(run.goodput, expected, 3 * run.standard_error) << seed;
    EXPECT_GT(run.failures, 0);
  }
}

TEST(Faults, PlayIsTheSameEveryTimeForASeed) {
  const FaultModel model = Model(64, 100, 300, 20, 120);
  const FaultRun first = SimulateFaults(model, 500, 3);
  EXPECT_EQ(first.goodput, SimulateFaults(model, 500, 3).goodput);
  EXPECT_EQ(first.failures, SimulateFaults(model, 500, 3).failures);
  EXPECT_NE(first.goodput, SimulateFaults(model, 500, 4).goodput);
}

TEST(Faults, WithoutFailuresOnlyCheckpointsCost) {
  const FaultModel model = Model(1, 2'000'000, 90, 10, 60);
  EXPECT_NEAR(ExpectedGoodput(model), 0.9, 1e-6);
  EXPECT_EQ(SimulateFaults(model, 10, 1).goodput, 0.9);
  EXPECT_EQ(SimulateFaults(model, 10, 1).failures, 0);
}

TEST(Faults, BestIntervalIsBest) {
  for (const FaultModel& model : {Model(64, 100, 1, 20, 120), Model(1024, 5000, 1, 60, 600),
                                  Model(1, 1, 1, 120, 30), Model(4096, 20'000, 1, 5, 0)}) {
    FaultModel best = model;
    best.checkpoint_interval = BestCheckpointInterval(model);
    for (const double factor : {0.5, 0.9, 0.99, 1.01, 1.1, 2.0}) {
      FaultModel other = best;
      other.checkpoint_interval = Nanoseconds{
          static_cast<int64_t>(static_cast<double>(best.checkpoint_interval.count()) * factor)};
      EXPECT_GT(ExpectedGoodput(best), ExpectedGoodput(other)) << factor;
    }
    // Young's estimate is first order in the square root of C / M and above the best.
    const double young = static_cast<double>(YoungCheckpointInterval(model).count());
    const double exact = static_cast<double>(best.checkpoint_interval.count());
    const double order = std::sqrt(2.0 * static_cast<double>(model.checkpoint_cost.count()) *
                                   model.ranks / static_cast<double>(model.rank_mtbf.count()));
    EXPECT_GT(young, exact);
    EXPECT_LT(young, exact * (1 + order));
  }
}

TEST(Faults, BadOptionsAreNamed) {
  EXPECT_THROW(ExpectedGoodput(Model(0, 1, 1, 1, 1)), Error);
  EXPECT_THROW(ExpectedGoodput(Model(1, 0, 1, 1, 1)), Error);
  EXPECT_THROW(ExpectedGoodput(Model(1, 1, 0, 1, 1)), Error);
  EXPECT_THROW(ExpectedGoodput(Model(1, 1, 1, -1, 1)), Error);
  EXPECT_THROW(ExpectedGoodput(Model(1024, 1, 600, 1, 1)), Error);
  EXPECT_THROW(SimulateFaults(Model(1, 1, 1, 1, 1), 1, 0), Error);
}

}  // namespace
}  // namespace pipelag
