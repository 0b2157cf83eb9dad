// What updates cost a step by waiting for reductions, norms and barriers: exact figures, and
// against the step time at the limit and one nanosecond beyond.
#include "sim/reduction_cost.h"

#include <gtest/gtest.h>

#include "models/schedule/generators.h"
#include "tests/schedule/random_schedule.h"

namespace pipelag {
namespace {

Costs Uniform(int stages, int64_t update) {
  Costs costs;
  const auto n = static_cast<size_t>(stages);
  costs.forward.assign(n, Nanoseconds{1000});
  costs.backward.assign(n, Nanoseconds{2000});
  costs.backward_input = costs.backward_weight = costs.forward;
  costs.update.assign(n, Nanoseconds{update});
  return costs;
}

ReductionCost CostOf(const char* schedule, const GeneratorOptions& options, int64_t update,
                     int64_t reduction) {
  const Program program(Generate(schedule, options), 1);
  return CostOfReductions(
      program, ActionTimes(program, Uniform(options.ranks, update), {Nanoseconds{reduction}}));
}

// reference: the update of a late 2BW waits at no cost for m − w_0 pairs.
TEST(ReductionCost, LateUpdatesOf2BWHideThemInTheSlack) {
  for (int p = 2; p <= 8; ++p) {
    for (int m = p - 1; m <= 2 * p + 1; ++m) {
      const int64_t slack = int64_t{m - (p - 1)} * 3000;
      const GeneratorOptions options{.ranks = p, .microbatches = m, .reduction = true};
      for (const int64_t over : {int64_t{-1}, int64_t{0}, int64_t{1}, int64_t{700}}) {
        if (slack + over < 0) continue;
        const ReductionCost cost = CostOf("2bw", options, 50, slack + over);
        const int64_t late = std::max<int64_t>(over, 0);
        EXPECT_EQ(cost.without, (StepTime{3000 * m + 50, 1}));
        EXPECT_EQ(cost.with, (StepTime{3000 * m + 50 + late, 1}));
        EXPECT_EQ(cost.longest_hidden, Nanoseconds{slack}) << p << " " << m;
        EXPECT_EQ(cost.too_long, Nanoseconds{late});
        EXPECT_EQ(cost.Cost(), Nanoseconds{late});
        EXPECT_EQ(cost.hidden(), late == 0);
      }
    }
  }
}

TEST(ReductionCost, EarlyUpdatesAndFlushesPayAllOfIt) {
  GeneratorOptions options{.ranks = 4, .microbatches = 8, .reduction = true};
  const ReductionCost flush = CostOf("1f1b", options, 50, 1500);
  EXPECT_EQ(flush.Cost(), Nanoseconds{1500});
  EXPECT_EQ(flush.longest_hidden, Nanoseconds{0});
  EXPECT_EQ(flush.too_long, Nanoseconds{1500});
  options.late_update = false;
  EXPECT_EQ(CostOf("2bw", options, 50, 1500).Cost(), Nanoseconds{1500});
}

TEST(ReductionCost, NormsAndBarriersCostByTheirOrder) {
  // Early: every stage waits for the batch to end everywhere (schedules.md 4.14).
  GeneratorOptions options{.ranks = 4, .microbatches = 8, .norm = true, .late_update = false};
  EXPECT_EQ(CostOf("2bw", options, 0, 0).Cost(), Nanoseconds{6000});
  EXPECT_FALSE(CostOf("2bw", options, 0, 0).longest_hidden.has_value());
  options.late_update = true;
  EXPECT_TRUE(CostOf("2bw", options, 0, 0).hidden());
  EXPECT_EQ(CostOf("zb-h2", {.ranks = 4, .microbatches = 8, .barrier = true}, 0, 0).without,
            (StepTime{24000, 1}));
}

// Whatever the times: at the limit the step is as long as without, one beyond it is longer.
TEST(ReductionCost, LimitIsSharp) {
  int limited = 0;
  for (uint64_t n = 0; n < 300; ++n) {
    Luck luck(21, n);
    GeneratorOptions options{.ranks = luck.Between(1, 4), .microbatches = luck.Between(4, 8)};
    options.reduction = true;
    options.norm = luck.Chance(30);
    const Program program(Generate(luck.Chance(80) ? "2bw" : "gpipe", options), 1);
    const Costs costs = RandomCosts(luck, options.ranks, luck.Chance(30));
    const auto times = [&](Nanoseconds reduction) {
      return ActionTimes(program, costs, {reduction});
    };
    const ReductionCost cost = CostOfReductions(program, times(Nanoseconds{luck.Below(9000)}));
    if (!cost.longest_hidden) continue;
    ++limited;
    const auto step = [&](Nanoseconds reduction) {
      return ExactSteadyState(program, times(reduction)).step_time;
    };
    ASSERT_EQ(step(*cost.longest_hidden), cost.without) << n;
    ASSERT_NE(step(*cost.longest_hidden + Nanoseconds{1}), cost.without) << n;
  }
  EXPECT_GT(limited, 150);
}

}  // namespace
}  // namespace pipelag
