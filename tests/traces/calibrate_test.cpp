// Calibration gets back the costs a run was made with.
#include "traces/calibrate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/error.h"
#include "tests/traces/sample.h"

namespace pipelag {
namespace {

using sample::Act;
using sample::Empty;
using enum ActionKind;

std::vector<Nanoseconds> Times(std::initializer_list<int64_t> counts) {
  std::vector<Nanoseconds> times;
  for (const int64_t count : counts) times.emplace_back(count);
  return times;
}

TEST(Calibrate, ReadsCostsAndLatencyOffARun) {
  const Costs costs = Calibrate({sample::GPipe(3, 4, 3, 1000, 2000, 70)});
  EXPECT_EQ(costs.forward, Times({1000, 1000, 1000}));
  EXPECT_EQ(costs.backward, Times({2000, 2000, 2000}));
  EXPECT_EQ(costs.update, Times({0, 0, 0}));
  EXPECT_TRUE(costs.backward_input.empty());
  EXPECT_TRUE(costs.backward_weight.empty());
  EXPECT_EQ(costs.p2p_latency.count(), 70);
  EXPECT_EQ(costs.p2p_bandwidth, Bandwidth{});
  EXPECT_EQ(costs.source, "calibrated on gpipe on 3 ranks, steps 1 to 2");
}

TEST(Calibrate, CopiesOfAStageAreThatStage) {
  // The same run twice, side by side: stages 0 to 2 on ranks 0 to 2 and again, as 3 to 5, on
  // others.
  Trace twice = sample::GPipe(3, 4, 3, 1000, 2000, 70);
  const Costs alone = Calibrate({twice});
  twice.ranks = twice.stages = 6;
  for (const int rank : {3, 4, 5}) twice.stage_rank.push_back(rank);
  const std::vector<Span> spans = twice.spans;
  for (Span span : spans) {
    span.rank += 3;
    span.stage += 3;
    if (span.peer >= 0) span.peer += 3;
    span.microbatch += HasMicrobatch(span.kind) ? 100 : 0;
    twice.spans.push_back(span);
  }
  twice.spans.push_back({.rank = 0, .kind = kAllReduce, .stage = 4, .microbatch = 1});
  const Trace folded = OfSlices(twice, 3);
  EXPECT_EQ(folded.stages, 3);
  EXPECT_EQ(folded.spans.back().stage, 4);
  for (const Span& span : folded.spans) {
    if (span.kind == kAllReduce) continue;
    EXPECT_LT(span.stage, 3);
  }
  Costs both = Calibrate({folded});
  both.source = alone.source;
  EXPECT_EQ(both, alone);
}

// DualPipe on two ranks splits the backwards of one stage only.
TEST(Calibrate, DividesABackwardAsOtherStagesDo) {
  Trace trace = sample::GPipe(2, 2, 2, 1000, 2000, 0);
  for (const int64_t k : {0, 1, 2, 3}) {
    trace.spans.push_back(Act(1, kBackwardInput, k, 0, 600));
    trace.spans.push_back(Act(1, kBackwardWeight, k, 0, 200));
  }
  const Costs costs = Calibrate({trace});
  EXPECT_EQ(costs.backward, Times({2000, 2000}));
  EXPECT_EQ(costs.backward_input, Times({1500, 600}));
  EXPECT_EQ(costs.backward_weight, Times({500, 200}));
}

TEST(Calibrate, AReductionTakesAsLongAsForWhomComesLast) {
  Trace trace = Empty(2, 4, 4);
  for (int64_t step = 0; step < 4; ++step) {
    for (const int rank : {0, 1}) {
      const int64_t takes = step == 0 ? 5000 : 200 + 10 * step;
      trace.spans.push_back({.rank = rank,
                             .kind = kAllReduce,
                             .stage = 1,
                             .microbatch = step,
                             .start = Nanoseconds{1000 * step + (rank == 0 ? 0 : 300)},
                             .end = Nanoseconds{1000 * step + 300 + takes}});
    }
  }
  EXPECT_EQ(ReductionTimes(trace, 3, 1), Times({0, 220, 0}));
}

/// A noisy run of `p` stages with split backwards: F of stage s lasts 1000·(s+1), I 700, W 400, U
/// 90, each give or take `noise`, and one in ten is ten times as long.
Trace Noisy(int p, int64_t steps, int64_t noise, uint64_t seed) {
  sample::Luck luck(seed);
  Trace trace = Empty(p, 4, steps);
  trace.schedule = "zb-h1";
  for (int rank = 0; rank < p; ++rank) {
    int64_t now = 0;
    const auto act = [&](ActionKind kind, int64_t microbatch, int64_t cost) {
      const bool cold = !HasMicrobatch(kind) ? microbatch == 0 : microbatch < 4;
      const int64_t factor = cold ? 50 : luck.Below(10) == 0 ? 10 : 1;
      const int64_t time = factor * cost + luck.Below(2 * noise + 1) - noise;
      trace.spans.push_back(Act(rank, kind, microbatch, now, now + time));
      now += time;
    };
    for (int64_t step = 0; step < steps; ++step) {
      for (int64_t k = 4 * step; k < 4 * step + 4; ++k) act(kForward, k, 1000 * (rank + 1));
      for (int64_t k = 4 * step; k < 4 * step + 4; ++k) {
        act(kBackwardInput, k, 700);
        act(kBackwardWeight, k, 400);
      }
      act(kUpdate, step, 90);
    }
  }
  trace.spans.push_back(sample::Transfer(0, kSendForward, 1, 0, 0, 5));
  trace.spans.back().bytes = 4096;
  SortSpans(trace);
  return trace;
}

TEST(Calibrate, SeesThroughNoiseOutliersAndColdStarts) {
  const int64_t noise = 20;
  const Costs costs = Calibrate({Noisy(2, 40, noise, 1), Noisy(2, 40, noise, 2)});
  const auto near = [&](Nanoseconds time, int64_t truth) {
    EXPECT_NEAR(static_cast<double>(time.count()), static_cast<double>(truth),
                static_cast<double>(noise) / 2);
  };
  for (size_t s = 0; s < 2; ++s) {
    near(costs.forward[s], 1000 * (static_cast<int64_t>(s) + 1));
    near(costs.backward_input[s], 700);
    near(costs.backward_weight[s], 400);
    near(costs.update[s], 90);
  }
  EXPECT_TRUE(costs.backward.empty());
  EXPECT_EQ(costs.activation_bytes, 4096);
  EXPECT_EQ(costs.p2p_latency.count(), 0);
}

TEST(Calibrate, MediansOfEvenCountsLieBetween) {
  Trace trace = Empty(1, 2, 1);
  trace.spans = {Act(0, kForward, 0, 0, 10), Act(0, kForward, 1, 10, 25),
                 Act(0, kBackward, 0, 25, 35), Act(0, kBackward, 1, 35, 47)};
  const Costs costs = Calibrate({trace}, {.warm_up = 0});
  EXPECT_EQ(costs.forward, Times({13}));  // 12.5
  EXPECT_EQ(costs.backward, Times({11}));
}

TEST(Calibrate, HalvesOfAnOverlapTellNothing) {
  Trace trace = Empty(1, 3, 1);
  trace.spans = {Act(0, kForward, 0, 0, 10), Act(0, kForward, 1, 10, 90),
                 Act(0, kBackward, 0, 10, 90), Act(0, kBackward, 1, 90, 110)};
  trace.spans[1].overlapped = trace.spans[2].overlapped = true;
  const Costs costs = Calibrate({trace}, {.warm_up = 0});
  EXPECT_EQ(costs.forward, Times({10}));
  EXPECT_EQ(costs.backward, Times({20}));
}

TEST(Calibrate, KeepsBothFormsOfBackwardIfBothAreComplete) {
  Trace trace = Empty(1, 2, 1);
  trace.spans = {Act(0, kForward, 0, 0, 10), Act(0, kBackward, 0, 10, 30),
                 Act(0, kBackwardInput, 1, 30, 41), Act(0, kBackwardWeight, 1, 41, 50)};
  const Costs costs = Calibrate({trace}, {.warm_up = 0});
  EXPECT_EQ(costs.backward, Times({20}));
  EXPECT_EQ(costs.backward_input, Times({11}));
  EXPECT_EQ(costs.backward_weight, Times({9}));
}

TEST(Calibrate, LatencyIsOfWaitsForOtherRanksOnly) {
  Trace trace = Empty(2, 1, 1);
  trace.stages = 3;
  trace.stage_rank = {0, 1, 1};
  trace.spans = {Act(0, kForward, 0, 0, 10),     Act(1, kForward, 0, 18, 30, 18),
                 Act(1, kForward, 0, 35, 40, 5), Act(1, kBackward, 0, 40, 50),
                 Act(1, kBackward, 0, 50, 60),   Act(0, kBackward, 0, 64, 70, 54)};
  trace.spans[2].stage = trace.spans[3].stage = 2;
  // Hops: 8 (F of stage 1) and 4 (B of stage 0); the wait of stage 2 was for its own rank.
  EXPECT_EQ(Calibrate({trace}, {.warm_up = 0}).p2p_latency.count(), 6);
}

TEST(Calibrate, RefusesWhatIsIncomplete) {
  using testing::HasSubstr;
  const auto complaint = [](const std::vector<Trace>& traces, int64_t warm_up) -> std::string {
    try {
      Calibrate(traces, {.warm_up = warm_up});
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  };
  EXPECT_THAT(complaint({}, 1), HasSubstr("at least one trace"));
  const Trace gpipe = sample::GPipe(2, 2, 2, 10, 20, 0);
  EXPECT_THAT(complaint({gpipe}, 2),
              HasSubstr("stage 0 has no F after dropping the first 2 steps"));
  EXPECT_THAT(complaint({gpipe, sample::GPipe(3, 2, 2, 10, 20, 0)}, 1),
              HasSubstr("differ in stages"));
  Trace no_backward = gpipe;
  std::erase_if(no_backward.spans,
                [](const Span& span) { return span.kind == kBackward && span.rank == 1; });
  EXPECT_THAT(complaint({no_backward}, 1), HasSubstr("stage 1 has no B and no I"));
  no_backward.spans.push_back(Act(1, kBackwardInput, 2, 500, 600));
  EXPECT_THAT(complaint({no_backward}, 1), HasSubstr("stage 1 has no B and no W"));
  no_backward.spans.push_back(Act(1, kBackwardWeight, 2, 600, 700));
  EXPECT_THAT(complaint({no_backward}, 1), HasSubstr("no form of backward is on every stage"));
}

}  // namespace
}  // namespace pipelag
