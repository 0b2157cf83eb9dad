// Figures of runs small enough to work out by hand, and the closed forms of GPipe.
#include "traces/metrics.h"

#include <gtest/gtest.h>

#include "tests/traces/sample.h"
#include "traces/in_flight.h"

namespace pipelag {
namespace {

using sample::Act;
using sample::Empty;
using sample::Transfer;
constexpr auto F = ActionKind::kForward;
constexpr auto B = ActionKind::kBackward;
constexpr auto I = ActionKind::kBackwardInput;
constexpr auto W = ActionKind::kBackwardWeight;
constexpr auto U = ActionKind::kUpdate;

std::vector<int64_t> Counts(const std::vector<Nanoseconds>& times) {
  std::vector<int64_t> counts;
  for (const Nanoseconds time : times) counts.push_back(time.count());
  return counts;
}

TEST(Metrics, OfTwoRanksByHand) {
  Trace trace = Empty(2, 2, 1);
  // The run starts at 100; the receive posted before that is nothing that happened yet.
  trace.spans = {Act(0, F, 0, 100, 110),
                 Act(0, F, 1, 110, 120),
                 Act(0, B, 0, 147, 167, 27),
                 Act(0, B, 1, 177, 197, 10),
                 Act(1, F, 0, 113, 123, 13),
                 Act(1, F, 1, 123, 133),
                 Act(1, B, 0, 133, 153),
                 Act(1, B, 1, 153, 173),
                 Transfer(0, ActionKind::kReceiveBackward, 1, 0, 50, 60),
                 Transfer(1, ActionKind::kReceiveForward, 0, 0, 110, 113),
                 Transfer(1, ActionKind::kReceiveForward, 0, 1, 120, 124)};
  SortSpans(trace);
  const Metrics metrics = ComputeMetrics(trace);
  EXPECT_EQ(metrics.makespan.count(), 97);
  EXPECT_EQ(metrics.step_time, (StepTime{97, 1}));
  const RankTotals& first = metrics.ranks[0].totals;
  EXPECT_EQ(first, (RankTotals{Nanoseconds{0}, Nanoseconds{97}, Nanoseconds{60}, Nanoseconds{37},
                               Nanoseconds{10}, 2}));
  const RankTotals& second = metrics.ranks[1].totals;
  EXPECT_EQ(second, (RankTotals{Nanoseconds{13}, Nanoseconds{73}, Nanoseconds{60}, Nanoseconds{13},
                                Nanoseconds{7}, 2}));
  EXPECT_EQ(metrics.ranks[0].idle.count(), 37);
  EXPECT_EQ(metrics.ranks[1].idle.count(), 37);
  EXPECT_EQ(metrics.bubble.idle_of_makespan, 37.0 / 97.0);
  EXPECT_EQ(metrics.bubble.idle_over_ideal, 37.0 / 60.0);
  EXPECT_EQ(metrics.bubble.of_span, 37.0 / 97.0);
  EXPECT_EQ(metrics.bubble.steady_state, 37.0 / 97.0);
}

TEST(Metrics, OfGPipeMatchTheClosedForm) {
  for (const int64_t steps : {1, 4}) {
    const Metrics metrics = ComputeMetrics(sample::GPipe(4, 8, steps, 1000, 2000, 0));
    EXPECT_EQ(metrics.step_time, (StepTime{33'000, 1}));
    EXPECT_EQ(metrics.bubble.idle_of_makespan, 3.0 / 11.0);
    EXPECT_EQ(metrics.bubble.idle_over_ideal, 3.0 / 8.0);
    EXPECT_EQ(metrics.bubble.steady_state, 3.0 / 11.0);
    for (const RankMetrics& rank : metrics.ranks) EXPECT_EQ(rank.totals.peak_in_flight, 8);
  }
  const Metrics one = ComputeMetrics(sample::GPipe(4, 8, 1, 1000, 2000, 0));
  EXPECT_EQ(one.bubble.of_span, 3.0 / 11.0);
  EXPECT_EQ(ComputeMetrics(sample::GPipe(4, 8, 3, 1000, 2000, 100)).step_time,
            (StepTime{33'600, 1}));
}

TEST(Metrics, OfTotalsNeedNoTrace) {
  // 2BW, 4 ranks, m = 5, hop 100, 10 steps: reference figures.
  std::vector<RankTotals> ranks(4);
  for (RankTotals& rank : ranks) {
    rank.last_end = Nanoseconds{166'800};
    rank.busy = Nanoseconds{150'000};
  }
  const Metrics metrics = ComputeMetrics(ranks, {15'750, 1}, Nanoseconds{15'000});
  EXPECT_EQ(metrics.bubble.idle_of_makespan, 14.0 / 139.0);
  EXPECT_EQ(metrics.bubble.idle_over_ideal, 14.0 / 125.0);
  EXPECT_EQ(metrics.bubble.of_span, 14.0 / 139.0);
  EXPECT_EQ(metrics.bubble.steady_state, 1.0 / 21.0);
}

TEST(Metrics, BubblesOfVeryLongRunsAreStillExact) {
  const int64_t huge = 3'000'000'000'000'000'001;  // beyond what a double holds, times 1024 ranks
  std::vector<RankTotals> ranks(1024);
  for (RankTotals& rank : ranks) {
    rank.last_end = Nanoseconds{huge};
    rank.busy = Nanoseconds{huge / 3};
  }
  const Metrics metrics = ComputeMetrics(ranks, {huge, 1}, Nanoseconds{huge / 3});
  EXPECT_EQ(metrics.bubble.idle_of_makespan, 2.0 / 3.0);
}

TEST(Metrics, OfNothingAreZero) {
  const Metrics metrics = ComputeMetrics(Empty(2, 1, 1));
  EXPECT_EQ(metrics.makespan.count(), 0);
  EXPECT_EQ(metrics.step_time, StepTime{});
  EXPECT_EQ(metrics.bubble.idle_of_makespan, 0);
  EXPECT_EQ(metrics.bubble.steady_state, 0);
  EXPECT_EQ(MeasuredDelay(Empty(2, 1, 1)), (std::vector<int64_t>{-1, -1}));
}

TEST(Metrics, HalvesOfAnOverlapCountOnce) {
  Trace trace = Empty(1, 1, 2);
  trace.spans = {Act(0, F, 0, 0, 10), Act(0, F, 1, 15, 40, 5), Act(0, B, 0, 15, 40, 5),
                 Act(0, B, 1, 40, 60)};
  trace.spans[1].overlapped = trace.spans[2].overlapped = true;
  const RankTotals totals = TotalsOf(trace)[0];
  EXPECT_EQ(totals.busy.count(), 55);
  EXPECT_EQ(totals.wait.count(), 5);
  EXPECT_EQ(totals.peak_in_flight, 2);
}

TEST(Metrics, AnActivationIsHeldUntilItsWeightGradient) {
  Trace trace = Empty(1, 3, 1);
  trace.spans = {Act(0, F, 0, 0, 10),  Act(0, I, 0, 10, 20), Act(0, F, 1, 20, 30),
                 Act(0, W, 0, 30, 40), Act(0, F, 2, 40, 50), Act(0, B, 1, 50, 60),
                 Act(0, B, 7, 60, 70)};  // its F is not in the trace
  EXPECT_EQ(TotalsOf(trace)[0].peak_in_flight, 2);
  using H = HeldActivations;
  EXPECT_EQ(ActivationsInFlight(trace)[0],
            (std::vector<H>{H{Nanoseconds{0}, 1}, H{Nanoseconds{20}, 2}, H{Nanoseconds{40}, 2},
                            H{Nanoseconds{60}, 1}}));
}

TEST(Steps, EndWithTheLastUpdateOrElseTheLastBackward) {
  Trace trace = Empty(2, 2, 3);
  trace.spans = {Act(0, B, 0, 0, 10),  Act(0, B, 1, 10, 20), Act(0, U, 0, 20, 25),
                 Act(0, W, 2, 30, 40), Act(0, U, 1, 40, 45), Act(0, W, 4, 45, 70),
                 Act(1, U, 0, 21, 31), Act(1, B, 3, 31, 90), Act(1, I, 5, 90, 99)};
  // Step 1 ends with its update although a backward of it ended later.
  EXPECT_EQ(Counts(StepEnds(trace)), (std::vector<int64_t>{31, 45, 70}));
}

TEST(Steps, StepTimeIsTheMedianAfterTheWarmUp) {
  Trace trace = Empty(1, 1, 6);
  int64_t start = 0;
  for (const int64_t end : {1000, 1500, 1510, 1520, 1531, 1542}) {
    trace.spans.push_back(Act(0, U, static_cast<int64_t>(trace.spans.size()), start, end));
    start = end;
  }
  EXPECT_EQ(StepTimeOf(trace, 0), (StepTime{11, 1}));  // 10 10 11 11 500
  EXPECT_EQ(StepTimeOf(trace, 1), (StepTime{11, 1}));
  EXPECT_EQ(StepTimeOf(trace, 2), (StepTime{21, 2}));  // 10 10 11 11
  EXPECT_EQ(StepTimeOf(trace, 2).RoundedUp().count(), 11);
  EXPECT_EQ(StepTimeOf(trace, 5), (StepTime{11, 1}));
  EXPECT_EQ(StepTimeOf(trace, 99), (StepTime{11, 1}));
  EXPECT_EQ(BusyPerStep(trace, 2).count(), 11);
  EXPECT_EQ(Median({Nanoseconds{4}, Nanoseconds{2}}), (StepTime{3, 1}));
}

TEST(Delay, IsTheMostAnyForwardMissed) {
  Trace trace = Empty(2, 2, 4);
  trace.spans = {Act(0, F, 0, 0, 1), Act(0, F, 5, 1, 2), Act(0, F, 6, 2, 3), Act(1, F, 0, 0, 1)};
  trace.spans[0].weight_version = 0;
  trace.spans[1].weight_version = 0;  // step 2 on version 0
  trace.spans[2].weight_version = 2;
  EXPECT_EQ(MeasuredDelay(trace), (std::vector<int64_t>{2, -1}));
}

TEST(SortSpans, OrdersByRankLaneAndStart) {
  using enum ActionKind;
  Trace trace = Empty(3, 1, 1);
  trace.spans = {Act(1, F, 9, 0, 5),
                 Act(0, kAllReduce, 8, 0, 1),
                 Transfer(0, kReceiveBackward, 1, 6, 0, 1),
                 Transfer(0, kSendForward, 2, 7, 0, 1),
                 Transfer(0, kSendBackward, 1, 5, 0, 1),
                 Transfer(0, kReceiveForward, 1, 4, 0, 1),
                 Transfer(0, kSendForward, 1, 3, 0, 1),
                 Act(0, F, 1, 3, 5),
                 Act(0, B, 2, 3, 5),
                 Act(0, U, 0, 3, 3)};
  SortSpans(trace);
  std::vector<int64_t> order;
  for (const Span& span : trace.spans) order.push_back(span.microbatch);
  EXPECT_EQ(order, (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_TRUE(AreSorted(trace));
  EXPECT_EQ(SpanName(trace.spans[4]), "0RECV_F4");
}

}  // namespace
}  // namespace pipelag
