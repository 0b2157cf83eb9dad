// Planning against simulating everything: nothing that is left out may be missed.
#include "sim/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "models/random.h"
#include "models/schedule/generators.h"
#include "sim/estimated_run.h"
#include "sim/simulator.h"
#include "traces/memory.h"

namespace pipelag {
namespace {

constexpr const char* kSchedules[] = {
    "gpipe",      "1f1b", "eager-1f1b", "interleaved-1f1b", "zb-h1",     "zb-h2", "zb-v",
    "looped-bfs", "2bw",  "dualpipe",   "dualpipe-v",       "pipedream", "paci"};

/// Times and sizes that differ from stage to stage at random.
Estimate RandomEstimate(uint64_t seed, int stages, bool reduced) {
  Estimate estimate;
  Costs& costs = estimate.costs;
  for (int s = 0; s < stages; ++s) {
    const auto below = [&](uint64_t what, uint64_t bound) {
      return static_cast<int64_t>(
          UniformBelow(RandomBits(seed, static_cast<uint64_t>(s), what), bound));
    };
    costs.forward.push_back(Nanoseconds{500 + below(1, 1000)});
    costs.backward_input.push_back(Nanoseconds{500 + below(2, 1000)});
    costs.backward_weight.push_back(Nanoseconds{100 + below(3, 1000)});
    costs.backward.push_back(costs.backward_input.back() + costs.backward_weight.back() -
                             Nanoseconds{below(4, 100)});
    costs.update.push_back(Nanoseconds{below(5, 700)});
    if (reduced) estimate.reduction.push_back(Nanoseconds{below(6, 900)});
    StageMemory memory{.weights = below(7, 1000),
                       .gradients = below(8, 1000),
                       .optimizer = below(9, 1000),
                       .activation = 100 + below(10, 1000),
                       .freed_at_input = below(11, 200) - 100,
                       .message = 64,
                       .workspace = below(12, 500)};
    estimate.memory.stages.push_back(memory);
  }
  costs.activation_bytes = 64;
  costs.p2p_bandwidth = Bandwidth{1'000'000'000};
  costs.p2p_latency = Nanoseconds{static_cast<int64_t>(UniformBelow(RandomBits(seed, 99), 300))};
  return estimate;
}

template <class Check>
void ForEachSchedule(const Check& check) {
  uint64_t seed = 0;
  for (const char* schedule : kSchedules) {
    for (const auto& [ranks, microbatches] : {std::pair(1, 4), {2, 4}, {4, 8}, {4, 12}, {6, 12}}) {
      for (const bool reduced : {false, true}) {
        GeneratorOptions options{.ranks = ranks, .microbatches = microbatches};
        options.reduction = reduced;
        std::optional<Schedule> made;
        try {
          made = Generate(schedule, options);
        } catch (const Error&) {
          continue;  // sizes that the schedule does not take
        }
        check(*made, RandomEstimate(++seed, made->stages, reduced));
      }
    }
  }
  ASSERT_GT(seed, 90u);
}

TEST(PlannedProgram, NeverPromisesMoreThanTheSimulatorSays) {
  int exact = 0;
  ForEachSchedule([&](const Schedule& schedule, const Estimate& estimate) {
    const PlannedProgram planned(schedule);
    const std::vector<Nanoseconds> reductions = ReductionsOf(schedule, estimate);
    const ActionTimes times(planned.program(), estimate.costs, reductions);
    const Nanoseconds step = Simulate(planned.program(), times).steady.step_time.RoundedUp();
    const Nanoseconds least = planned.LeastStepTime(estimate.costs, reductions);
    EXPECT_LE(least, step) << schedule.name << ' ' << schedule.ranks;
    EXPECT_GE(2 * least, step) << schedule.name << ' ' << schedule.ranks;  // and says something
    exact += least == step ? 1 : 0;
  });
  EXPECT_GT(exact, 5);
}

TEST(PlannedProgram, IsExactForEqualStages) {
  for (const char* schedule : {"gpipe", "1f1b"}) {
    const PlannedProgram planned(Generate(schedule, {.ranks = 5, .microbatches = 7}));
    Costs costs;
    costs.forward.assign(5, Nanoseconds{10});
    costs.backward.assign(5, Nanoseconds{20});
    costs.update.assign(5, Nanoseconds{3});
    EXPECT_EQ(planned.LeastStepTime(costs, {}), Nanoseconds{(7 + 4) * 30 + 3});
  }
}

TEST(HeldMemory, IsThePeakOfTheTrace) {
  ForEachSchedule([&](const Schedule& schedule, const Estimate& estimate) {
    const PlannedProgram planned(schedule);
    const Program& program = planned.program();
    const ActionTimes times(program, estimate.costs, ReductionsOf(schedule, estimate));
    const Trace trace = Simulate(program, times, {.spans = true}).trace;
    const std::vector<RankMemory> over_time =
        MemoryOverTime(trace, estimate.memory, StandingMemoryOf(program, estimate.memory));
    const std::vector<Bytes> peaks = planned.held().PeaksOf(program, estimate.memory);
    ASSERT_EQ(peaks.size(), over_time.size());
    for (size_t rank = 0; rank < peaks.size(); ++rank) {
      EXPECT_EQ(peaks[rank], over_time[rank].peak) << schedule.name << ' ' << rank;
    }
  });
}

/// A network of equal blocks whose costs hang on the layout in a way that no order is right for.
Estimate SmallCosts(const RunLayout& layout) {
  const Sharding& sharding = layout.sharding;
  if (sharding.tensor == 4 && sharding.sequences == 4) throw Error("4 does not go with 4");
  const int stages = layout.pipeline * layout.chunks;
  const uint64_t mood =
      RandomBits(7, static_cast<uint64_t>(sharding.tensor * 100 + layout.pipeline),
                 static_cast<uint64_t>(sharding.sequences * 10 + layout.shard_states),
                 static_cast<uint64_t>(sharding.recompute));
  const auto work = static_cast<int64_t>(24'000'000 * sharding.sequences / stages /
                                         sharding.tensor * (90 + UniformBelow(mood, 20)) / 100);
  const bool again = sharding.recompute == Recompute::kFull;
  Estimate estimate;
  for (int s = 0; s < stages; ++s) {
    const int64_t own = work + (s == stages - 1 ? work / 5 : 0);
    estimate.costs.forward.push_back(Nanoseconds{own});
    estimate.costs.backward_input.push_back(Nanoseconds{again ? 2 * own : own});
    estimate.costs.backward_weight.push_back(Nanoseconds{own});
    estimate.costs.backward.push_back(Nanoseconds{again ? 3 * own : 2 * own});
    estimate.costs.update.push_back(Nanoseconds{1000});
    estimate.reduction.push_back(Nanoseconds{200'000});
    const int64_t weights = 1'000'000 / stages / sharding.tensor;
    estimate.memory.stages.push_back(
        {.weights = weights,
         .gradients = weights,
         .optimizer = 6 * weights / (layout.shard_states > 0 ? layout.data : 1),
         .activation = 800'000 * sharding.sequences / stages / sharding.tensor / (again ? 10 : 1),
         .message = 1000});
  }
  if (layout.data == 1) estimate.reduction.clear();
  estimate.costs.activation_bytes = 1000;
  estimate.costs.p2p_bandwidth = Bandwidth{100'000'000};
  return estimate;
}

PlanSpace SmallSpace() {
  PlanSpace space;
  space.gpus = 16;
  space.batch = 32;
  space.layers = 8;
  space.tensor = {1, 2, 4};
  space.chunks = {1, 2};
  space.microbatch = {1, 2, 4};
  space.recompute = {Recompute::kNone, Recompute::kFull};
  space.shard_states = {0, 1};
  space.schedules = {"1f1b", "interleaved-1f1b", "zb-h1", "zb-v", "2bw", "pipedream"};
  return space;
}

struct Exhaustive {
  std::vector<PlanPoint> points;
  StepTimes times;
};

Exhaustive SimulateAll(Bytes memory) {
  Exhaustive all;
  all.points = AssessCandidates(EnumerateCandidates(SmallSpace()), SmallCosts, 2);
  for (const PlanPoint& point : all.points) {
    const bool fits = point.refusal.empty() && point.memory <= memory;
    all.times.push_back(fits ? std::optional(SimulatePoint(point)) : std::nullopt);
  }
  return all;
}

TEST(Plan, FindsWhatSimulatingEverythingFinds) {
  for (const Bytes memory : {Bytes{1'500'000}, Bytes{3'000'000}, Bytes{100'000'000}}) {
    const Exhaustive all = SimulateAll(memory);
    StepTimes times;
    const std::vector<size_t> chosen =
        PointsToSimulate(all.points, {.memory = memory, .top = 10, .ranked = {}}, 2, times);
    for (const size_t i : chosen) {
      ASSERT_TRUE(all.times[i]);
      EXPECT_TRUE(!times[i] || times[i] == all.times[i]);
      times[i] = all.times[i];
    }
    const std::vector<size_t> ranking = Ranking(all.points, all.times);
    const std::vector<size_t> found = Ranking(all.points, times);
    ASSERT_GE(found.size(), 10u);
    EXPECT_LT(found.size(), ranking.size()) << "nothing was left out";
    EXPECT_TRUE(std::equal(found.begin(), found.begin() + 10, ranking.begin()));
    EXPECT_EQ(ParetoFront(all.points, times), ParetoFront(all.points, all.times));
  }
}

TEST(Plan, KnowsThePlaceOfAnyLayout) {
  const Exhaustive all = SimulateAll(3'000'000);
  const std::vector<size_t> ranking = Ranking(all.points, all.times);
  int known = 0;
  for (const int tensor : {1, 2, 4}) {
    for (const int pipeline : {1, 4, 8}) {
      const auto ranked = [&](const PlanPoint& point) {
        return point.candidate.layout.sharding.tensor == tensor &&
               point.candidate.layout.pipeline == pipeline &&
               point.candidate.layout.sharding.recompute == Recompute::kFull;
      };
      StepTimes times;
      for (const size_t i : PointsToSimulate(
               all.points, {.memory = 3'000'000, .top = 1, .ranked = ranked}, 1, times)) {
        times[i] = all.times[i];
      }
      const auto place = [&](const std::vector<size_t>& order) {
        return std::find_if(order.begin(), order.end(),
                            [&](size_t i) { return ranked(all.points[i]); }) -
               order.begin();
      };
      if (place(ranking) == static_cast<ptrdiff_t>(ranking.size())) continue;  // none fits
      ++known;
      EXPECT_EQ(place(Ranking(all.points, times)), place(ranking));
    }
  }
  EXPECT_GT(known, 5);
}

TEST(Plan, IsTheSameOnAnyNumberOfThreads) {
  const std::vector<Candidate> candidates = EnumerateCandidates(SmallSpace());
  std::vector<size_t> first;
  StepTimes first_times;
  for (const int threads : {1, 2, 5}) {
    const std::vector<PlanPoint> points = AssessCandidates(candidates, SmallCosts, threads);
    StepTimes times;
    const auto chosen =
        PointsToSimulate(points, {.memory = 3'000'000, .top = 10, .ranked = {}}, threads, times);
    if (threads == 1) {
      first = chosen;
      first_times = times;
    }
    EXPECT_EQ(chosen, first);
    EXPECT_EQ(times, first_times);
  }
}

/// Two schedules, or two ways to shard what has no copies, may be one run: no two points have all
/// of body, layout and estimate in common.
TEST(Plan, LooksAtOneOfEquals) {
  PlanSpace space = SmallSpace();
  space.schedules = {"1f1b", "eager-1f1b", "zb-h1", "zb-h2", "interleaved-1f1b", "2bw"};
  space.shard_states = {1, 3};
  space.chunks = {1, 2, 4};
  const std::vector<Candidate> candidates = EnumerateCandidates(space);
  const std::vector<PlanPoint> points = AssessCandidates(candidates, SmallCosts, 2);
  EXPECT_LE(points.size(), candidates.size());
  int laid_out = 0;
  for (size_t i = 0; i < points.size(); ++i) {
    const RunLayout& own = points[i].candidate.layout;
    if (own.data == 1) {
      EXPECT_EQ(own.shard_states, 1);
    }
    if (!points[i].refusal.empty()) continue;
    ++laid_out;
    for (size_t j = 0; j < i; ++j) {
      if (!points[j].refusal.empty()) continue;
      RunLayout other = points[j].candidate.layout;
      const bool same_layout = Candidate{own, ""} == Candidate{other, ""} &&
                               points[i].program->program().schedule().body ==
                                   points[j].program->program().schedule().body &&
                               points[i].program->program().schedule().policy ==
                                   points[j].program->program().schedule().policy;
      EXPECT_FALSE(same_layout) << points[i].candidate.schedule << points[j].candidate.schedule;
    }
  }
  EXPECT_GT(laid_out, 100);
}

TEST(Plan, LooksAtEveryLayoutOnce) {
  const PlanSpace space = SmallSpace();
  const std::vector<Candidate> candidates = EnumerateCandidates(space);
  std::set<std::string> texts;
  for (const Candidate& candidate : candidates) {
    const RunLayout& layout = candidate.layout;
    EXPECT_EQ(layout.gpus(), space.gpus);
    EXPECT_EQ(layout.sequences(), space.batch);
    EXPECT_LE(layout.pipeline * layout.chunks, space.layers);
    EXPECT_TRUE(layout.pipeline > 1 || candidate.schedule == "1f1b");
    std::string text = candidate.schedule;
    for (const int64_t size :
         {int64_t{layout.sharding.tensor}, int64_t{layout.pipeline}, int64_t{layout.chunks},
          layout.sharding.sequences, static_cast<int64_t>(layout.sharding.recompute),
          int64_t{layout.shard_states}}) {
      text += ' ' + std::to_string(size);
    }
    EXPECT_TRUE(texts.insert(text).second) << text;
  }
  EXPECT_GT(candidates.size(), 200u);
  PlanSpace odd = space;
  odd.batch = 7;
  odd.tensor = {1};
  odd.pipeline = {2};
  EXPECT_TRUE(EnumerateCandidates(odd).empty());
  EXPECT_EQ(WhyNothingDivides(odd),
            "a batch of 7 sequences cannot be shared out over 16 GPUs: no number of copies that is "
            "possible times a micro-batch of 1,2,4 divides it");
  odd.tensor = {3};
  EXPECT_EQ(WhyNothingDivides(odd),
            "16 GPUs cannot be shared out: no product of tensor 3, context 1 and pipeline 2 "
            "divides their number, with a block of 8 for every rank");
}

}  // namespace
}  // namespace pipelag
