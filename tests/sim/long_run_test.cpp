// Runs that skip what repeats, and step times found by playing: against runs that are played action
// by action, and against the cycle ratio.
#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "models/schedule/generators.h"
#include "models/schedule/play.h"
#include "sim/simulator.h"
#include "tests/schedule/random_schedule.h"

namespace pipelag {
namespace {

// Playing steps until the state comes back, and the cycle ratio of the graph. Where the first step
// tells already, it tells the same.
TEST(LongRun, WaysToTheExactStepTimeAgree) {
  int told = 0;
  for (uint64_t n = 0; n < 1000; ++n) {
    Luck luck(16, n);
    const Program program(luck.Chance(50) ? RandomFlush(luck) : RandomEndless(luck), 1);
    const Costs costs = RandomCosts(luck, program.schedule().stages, luck.Chance(50));
    const ActionTimes times(program, costs);
    const StepTime exact = ExactSteadyState(program, times).step_time;
    ASSERT_EQ(ExactStepTime(program, times), exact) << n;
    const SimulationOptions no_graph{.most_actions_for_critical_cycle = 0};
    ASSERT_EQ(Simulate(program, times, no_graph).metrics.step_time, exact) << n;
    if (!program.schedule().flushes()) continue;
    struct Silent {
      void OnCompute(int, const RunAction&, int64_t, int64_t, int64_t, bool) {}
      void OnTransfer(int, const RunAction&, int64_t, int64_t, int64_t, int64_t) {}
      void OnReduce(int, int, int64_t, int64_t, int64_t) {}
    } silent;
    Play play(program, times, times.Links(0), silent);
    ASSERT_TRUE(play.Run().empty());
    std::vector<int64_t> lane_ends;
    for (size_t lane = 0; lane < program.lanes().size(); ++lane) {
      lane_ends.push_back(play.LaneEnd(static_cast<int>(lane)));
    }
    std::vector<RankTotals> totals;
    for (const RankMetrics& rank : Simulate(program, times).metrics.ranks) {
      totals.push_back(rank.totals);
    }
    const std::optional<StepTime> by_first = StepTimeByFirstStep(program, totals, lane_ends);
    told += by_first.has_value() ? 1 : 0;
    ASSERT_EQ(by_first.value_or(exact), exact) << n;
  }
  EXPECT_GT(told, 100);
}

void ExpectSameFigures(const Metrics& a, const Metrics& b, uint64_t n) {
  ASSERT_EQ(a.makespan, b.makespan) << n;
  for (size_t r = 0; r < a.ranks.size(); ++r) {
    ASSERT_EQ(a.ranks[r].totals, b.ranks[r].totals) << n << " rank " << r;
  }
}

// A run that skips what repeats against the same run written down action by action.
TEST(LongRun, SkippingWhatRepeatsChangesNothing) {
  for (uint64_t n = 0; n < 600; ++n) {
    Luck luck(17, n);
    const Program program(luck.Chance(30) ? RandomFlush(luck) : RandomEndless(luck),
                          luck.Between(49, 700));
    const Costs costs = RandomCosts(luck, program.schedule().stages, luck.Chance(50));
    const std::vector<Nanoseconds> reductions(program.schedule().groups.size(),
                                              Nanoseconds{luck.Below(500)});
    const ActionTimes times(program, costs, reductions);
    const int slots = luck.Chance(30) ? 8 : 0;
    ExpectSameFigures(Simulate(program, times, {.receive_slots = slots}).metrics,
                      Simulate(program, times, {.receive_slots = slots, .spans = true}).metrics, n);
  }
}

// Messages lie ready before ranks that are nearly as slow as the slowest: it takes thousands of
// steps, all alike, until those ranks have used them up.
TEST(LongRun, SkippingLongTransientsChangesNothing) {
  for (uint64_t n = 0; n < 40; ++n) {
    Luck luck(18, n);
    GeneratorOptions options{.ranks = luck.Between(2, 5), .microbatches = luck.Between(1, 3)};
    options.warmup_slope = luck.Between(2, 3);
    const Program program(Generate(luck.Chance(50) ? "pipedream" : "paci", options),
                          luck.Between(3000, 8000));
    Costs costs;
    for (int s = 0; s < options.ranks; ++s) {
      costs.forward.push_back(Nanoseconds{10'000 + luck.Below(6)});
      costs.backward.push_back(Nanoseconds{20'000 + luck.Below(6) + (s == 0 ? 10 : 0)});
      costs.update.push_back(Nanoseconds{luck.Below(3)});
    }
    costs.p2p_latency = Nanoseconds{luck.Below(3'000)};
    const ActionTimes times(program, costs);
    ExpectSameFigures(Simulate(program, times).metrics,
                      Simulate(program, times, {.spans = true}).metrics, n);
  }
}

// As many steps as can be numbered, of ranks that lose a nanosecond on each other every step: what
// the slowest one does fixes the makespan in the end.
TEST(LongRun, TheLongestRunThereIs) {
  constexpr int64_t kSteps = 2'147'483'647;
  const Program program(Generate("2bw", {.ranks = 4, .microbatches = 8}), kSteps);
  Costs costs;
  for (int64_t s = 0; s < 4; ++s) {
    costs.forward.push_back(Nanoseconds{1000});
    costs.backward.push_back(Nanoseconds{2000 + s});
    costs.update.push_back(Nanoseconds{0});
  }
  const Simulation s = Simulate(program, ActionTimes(program, costs));
  EXPECT_EQ(s.metrics.step_time, (StepTime{8 * 3003, 1}));
  // The last rank's first forward waits for three; its last backward goes back through three.
  EXPECT_EQ(s.metrics.makespan.count(), 3 * 1000 + kSteps * 8 * 3003 + 2002 + 2001 + 2000);
}

// News that has far to go through the graph comes there soon.
TEST(LongRun, WaysToTheExactStepTimeAgreeForManyRanks) {
  for (const char* schedule : {"1f1b", "gpipe", "zb-h1", "zb-v", "looped-bfs"}) {
    const Program program(Generate(schedule, {.ranks = 4000, .microbatches = 2}), 1);
    Costs costs;
    for (int s = 0; s < program.schedule().stages; ++s) {
      costs.forward.push_back(Nanoseconds{1000 + s % 7});
      costs.backward.push_back(Nanoseconds{2000 + s % 11});
      costs.update.push_back(Nanoseconds{s % 3});
    }
    costs.backward_input = costs.forward;
    costs.backward_weight = costs.forward;
    costs.p2p_latency = Nanoseconds{300};
    const ActionTimes times(program, costs);
    EXPECT_EQ(ExactStepTime(program, times), ExactSteadyState(program, times).step_time)
        << schedule;
  }
}

}  // namespace
}  // namespace pipelag
