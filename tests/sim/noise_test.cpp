// Noise keyed by action: the same luck in every schedule; quantiles over seeds.
#include "sim/noise.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "models/schedule/generators.h"
#include "sim/simulator.h"
#include "sim/spread.h"

namespace pipelag {
namespace {

Costs CostsOf(int stages) {
  Costs costs;
  const auto n = static_cast<size_t>(stages);
  costs.forward.assign(n, Nanoseconds{100'000});
  costs.backward.assign(n, Nanoseconds{200'000});
  costs.update.assign(n, Nanoseconds{1000});
  costs.p2p_latency = Nanoseconds{500};
  return costs;
}

Simulation Noisy(const char* schedule, const NoiseOptions& noise, const Cluster* cluster = nullptr,
                 int64_t steps = 3) {
  const Program program(Generate(schedule, {.ranks = 4, .microbatches = 8}), steps);
  const ActionTimes times(program, CostsOf(4));
  SimulationOptions options{.spans = true};
  options.network.cluster = cluster;
  options.noise = noise;
  return Simulate(program, times, options);
}

std::map<std::tuple<int, ActionKind, int, int64_t>, int64_t> Durations(const Simulation& run) {
  std::map<std::tuple<int, ActionKind, int, int64_t>, int64_t> durations;
  for (const Span& span : run.trace.spans) {
    if (!OnComputeLane(span.kind)) continue;
    durations[{span.rank, span.kind, span.stage, span.microbatch}] =
        (span.end - span.start).count();
  }
  return durations;
}

const NoiseOptions kNoise{.seed = 7,
                          .rank_factors = {1, 1.25, 1, 0.5},
                          .sigma = 0.2,
                          .stall_probability = 0.05,
                          .stall = Nanoseconds{50'000}};

TEST(Noise, SchedulesMeetTheSameLuck) {
  const auto expected = Durations(Noisy("1f1b", kNoise));
  EXPECT_EQ(Durations(Noisy("gpipe", kNoise)), expected);
  EXPECT_EQ(Durations(Noisy("2bw", kNoise)), expected);
  const Cluster line = LineCluster(4, {{1'000'000}, Nanoseconds{3000}, true});
  EXPECT_EQ(Durations(Noisy("1f1b", kNoise, &line)), expected);
  NoiseOptions other = kNoise;
  other.seed = 8;
  EXPECT_NE(Durations(Noisy("1f1b", other)), expected);
}

TEST(Noise, PlayAndFlowsAgreeUnderNoise) {
  const Cluster line = LineCluster(4, {{}, Nanoseconds{500}, true});
  for (const char* schedule : {"gpipe", "1f1b", "pipedream", "2bw"}) {
    EXPECT_EQ(Noisy(schedule, kNoise, &line).trace, Noisy(schedule, kNoise).trace) << schedule;
  }
}

TEST(Noise, WithoutAnyNothingChanges) {
  const Simulation quiet = Noisy("1f1b", {.seed = 99});
  EXPECT_EQ(quiet.steady.step_time, quiet.metrics.step_time);
  EXPECT_EQ(Noisy("1f1b", {.seed = 1}).trace, quiet.trace);
  EXPECT_EQ(Noisy("1f1b", {.rank_factors = {1}}).trace, quiet.trace);
}

TEST(Noise, FactorsAreLogNormalWithMedianOne) {
  const Program program(Generate("1f1b", {.ranks = 4, .microbatches = 8}), 1);
  const ActionTimes times(program, CostsOf(4));
  const NoisyTimes noisy(program, times,
                         {.sigma = 0.3, .stall_probability = 0.02, .stall = Nanoseconds{1}});
  std::vector<double> logs;
  int stalls = 0;
  constexpr int kDraws = 40'000;
  for (int i = 0; i < kDraws; ++i) {
    const RunAction action{.kind = ActionKind::kForward, .stage = i % 4, .microbatch = i / 4};
    logs.push_back(std::log(noisy.Factor(action)));
    stalls += noisy.Stalls(action) ? 1 : 0;
  }
  double sum = 0;
  double squares = 0;
  for (const double x : logs) {
    sum += x;
    squares += x * x;
  }
  std::sort(logs.begin(), logs.end());
  EXPECT_NEAR(logs[kDraws / 2], 0, 4 * 0.3 * 1.2533 / 200);
  EXPECT_NEAR(sum / kDraws, 0, 4 * 0.3 / 200);
  EXPECT_NEAR(std::sqrt(squares / kDraws), 0.3, 4 * 0.3 / std::sqrt(2.0 * kDraws));
  EXPECT_NEAR(stalls, 800, 4 * 28);
}

TEST(Noise, SlowRankIsSlowByItsFactor) {
  const auto durations = Durations(Noisy("1f1b", {.rank_factors = {1, 1.5, 1, 1}}));
  for (const auto& [key, time] : durations) {
    const auto& [rank, kind, stage, microbatch] = key;
    const int64_t base = kind == ActionKind::kForward    ? 100'000
                         : kind == ActionKind::kBackward ? 200'000
                                                         : 1000;
    EXPECT_EQ(time, rank == 1 ? base * 3 / 2 : base);
  }
}

/// What only pretends to vary is played action by action, and its step time is the mean of the run.
Simulation Played(const Program& program, const ActionTimes& times, SimulationOptions options) {
  options.noise.stall_probability = 1e-300;
  options.noise.stall = Nanoseconds{1};
  const Simulation played = Simulate(program, times, options);
  EXPECT_FALSE(played.exact);
  return played;
}

// Ranks of different speeds are as periodic as ranks of one: nothing is left to chance.
TEST(Noise, FactorsOfRanksAloneLeaveTheStepTimeExact) {
  // 240 steps between those whose ends make the mean: every period there is divides them.
  constexpr int64_t kSteps = 481;
  for (const std::string schedule : {"gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-v",
                                     "dualpipe", "2bw", "pipedream", "paci"}) {
    for (const std::vector<double>& factors :
         {std::vector<double>{1.1}, {1, 1.5, 1, 1}, {0.7, 1, 1.3, 2}, {1, 1, 1, 1.01}}) {
      for (const int64_t reduction : {0, 70'000}) {
        SCOPED_TRACE(fmt::format("{} {} {}", schedule, fmt::join(factors, ","), reduction));
        const bool waits = reduction > 0 && schedule != "pipedream" && schedule != "paci";
        const Program program(
            Generate(schedule,
                     {.ranks = 4, .microbatches = 8, .reduction = reduction > 0, .norm = waits}),
            kSteps);
        Costs costs = CostsOf(program.schedule().stages);
        costs.backward_input = costs.forward;
        costs.backward_weight = costs.forward;
        const ActionTimes times(program, costs, {Nanoseconds{reduction}});
        SimulationOptions options;
        options.noise.rank_factors = factors;
        const Simulation exact = Simulate(program, times, options);
        const Simulation played = Played(program, times, options);
        EXPECT_TRUE(exact.exact);
        EXPECT_EQ(exact.steady.step_time, played.steady.step_time);
        EXPECT_EQ(exact.metrics.makespan, played.metrics.makespan);
        EXPECT_FALSE(exact.steady.critical_ranks.empty());
      }
    }
  }
}

TEST(Noise, FactorsOfReplicasAreExactWhereReplicasAreAlike) {
  const Program program(Generate("1f1b", {.ranks = 2, .microbatches = 4, .reduction = true}), 481);
  const ActionTimes times(program, CostsOf(2));
  const Cluster cluster = LineCluster(4, {{}, Nanoseconds{500}, true});
  SimulationOptions options;
  options.network.cluster = &cluster;
  options.network.replicas = 2;
  options.noise.rank_factors = {1, 1.5, 1, 1.5};
  const Simulation alike = Simulate(program, times, options);
  EXPECT_TRUE(alike.exact);
  EXPECT_EQ(alike.steady.step_time, Played(program, times, options).steady.step_time);
  options.noise.rank_factors = {1, 1.5, 1, 1.25};
  EXPECT_FALSE(Simulate(program, times, options).exact);
  options.noise.rank_factors = {1, 1.5};
  EXPECT_THROW(Simulate(program, times, options), Error);
}

TEST(Noise, BadOptionsAreNamed) {
  EXPECT_THROW(Noisy("1f1b", {.rank_factors = {1, 2}}), Error);
  EXPECT_THROW(Noisy("1f1b", {.rank_factors = {0, 1, 1, 1}}), Error);
  EXPECT_THROW(CheckNoise({.sigma = -0.1}, 4), Error);
  EXPECT_THROW(CheckNoise({.stall_probability = 1.5}, 4), Error);
  EXPECT_THROW(CheckNoise({.stall = Nanoseconds{-1}}, 4), Error);
}

TEST(Spread, NearestRankQuantiles) {
  std::vector<Nanoseconds> values;
  for (int i = 100; i >= 1; --i) values.emplace_back(i);
  const Quantiles hundred = QuantilesOf(values);
  EXPECT_EQ(hundred.p5.count(), 5);
  EXPECT_EQ(hundred.p50.count(), 50);
  EXPECT_EQ(hundred.p95.count(), 95);
  EXPECT_EQ(QuantilesOf({Nanoseconds{3}}).p5.count(), 3);
}

TEST(Spread, GrowsWithTheNoiseAroundARunWithout) {
  const Program program(Generate("1f1b", {.ranks = 4, .microbatches = 8}), 6);
  const ActionTimes times(program, CostsOf(4));
  const int64_t quiet = Simulate(program, times).metrics.makespan.count();
  const auto spread = [&](double sigma) {
    SimulationOptions options;
    options.noise.sigma = sigma;
    return SpreadOverSeeds(program, times, options, 101);
  };
  const RunSpread none = spread(0);
  EXPECT_EQ(none.makespan.p5.count(), quiet);
  EXPECT_EQ(none.makespan.p95.count(), quiet);
  const RunSpread some = spread(0.05);
  const RunSpread more = spread(0.2);
  EXPECT_LT(some.makespan.p5, some.makespan.p50);
  EXPECT_LT(some.makespan.p50, some.makespan.p95);
  // A pipeline waits for the slowest, so jitter costs more than it gives.
  EXPECT_GT(some.makespan.p50.count(), quiet);
  EXPECT_GT(more.makespan.p50, some.makespan.p50);
  EXPECT_GT(more.step_time.p50, some.step_time.p50);
}

}  // namespace
}  // namespace pipelag
