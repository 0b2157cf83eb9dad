// A real run played again: measured times per action in, the measured span out.
#include <gtest/gtest.h>

#include <array>

#include "models/schedule/generators.h"
#include "sim/simulator.h"
#include "traces/idle.h"

namespace pipelag {
namespace {

// AMD Primus, 1F1B, 8 ranks, 16 micro-batches: microseconds by rank and micro-batch, the median
// over iterations 2 to 20. Iteration 1 (allocations, compilation) is left out. One action in each
// of eight rank-iterations stalls for some 250 ms; a median over 19 does not see it.
constexpr int kRanks = 8;
constexpr int kMicrobatches = 16;
using Table = std::array<std::array<int64_t, kMicrobatches>, kRanks>;
constexpr Table kForwards = {{
    {{62299, 57081, 56812, 56881, 57467, 57286, 56965, 57017, 57858, 58388, 57746, 57970, 57945,
      58023, 57779, 57786}},
    {{60055, 56657, 56364, 56452, 56373, 56248, 56373, 58235, 59250, 58685, 58555, 58719, 58441,
      58716, 58557, 58736}},
    {{59866, 56092, 56289, 56085, 56034, 62262, 57605, 58744, 58422, 57853, 57983, 57940, 57842,
      58100, 58903, 58178}},
    {{63681, 58864, 58629, 59007, 58861, 60341, 61912, 60917, 61041, 61557, 61241, 61098, 62134,
      61244, 60995, 60854}},
    {{62695, 59206, 58756, 59096, 60228, 61177, 61091, 60559, 60681, 60893, 61309, 61112, 60730,
      60862, 60895, 61384}},
    {{64481, 59672, 59680, 61374, 62652, 61992, 61651, 61948, 62678, 62064, 62029, 62049, 62550,
      62205, 62067, 62027}},
    {{59473, 59302, 59602, 59907, 60559, 59405, 59859, 60179, 59548, 60196, 59861, 59543, 59888,
      59966, 59538, 61110}},
    {{67719, 66704, 66913, 66809, 66850, 66759, 66858, 66737, 66870, 66823, 66866, 66843, 66870,
      66942, 66925, 66898}},
}};
constexpr Table kBackwards = {{
    {{69665, 69915, 69932, 70041, 70527, 70353, 70084, 70189, 70162, 70250, 70123, 70010, 69903,
      70036, 70024, 88081}},
    {{69252, 69663, 69545, 69739, 69856, 69621, 69778, 69638, 69860, 69802, 69987, 69846, 69709,
      69646, 69382, 69440}},
    {{70969, 70846, 70663, 71112, 70826, 71191, 71261, 71096, 70984, 71333, 71077, 71255, 71214,
      70619, 70552, 71522}},
    {{68420, 68692, 68774, 68726, 68666, 68933, 68900, 68831, 68559, 68749, 68957, 68871, 68957,
      68672, 68892, 69060}},
    {{69495, 69837, 69753, 70020, 69920, 70180, 69905, 70089, 69985, 70323, 69979, 70097, 69792,
      70021, 69566, 69589}},
    {{69613, 69734, 70244, 69941, 70097, 70148, 70057, 70243, 70294, 70099, 70245, 70294, 70031,
      70157, 69764, 69440}},
    {{68781, 68958, 68911, 69118, 69068, 69235, 69085, 69239, 69140, 69364, 69121, 69257, 69231,
      69340, 69160, 68909}},
    {{74255, 74587, 74728, 75050, 75025, 75138, 75117, 75266, 75209, 75275, 75236, 75397, 75241,
      75305, 75218, 75231}},
}};
// From rank 0's first forward to its last backward, the median over the 17 iterations without a
// stall on the way (all but 16 and 18 of 2 to 20).
constexpr double kMeasuredMicroseconds = 3'243'839;

std::vector<std::vector<Nanoseconds>> Times(const Table& table) {
  std::vector<std::vector<Nanoseconds>> times;
  for (const auto& rank : table) {
    std::vector<Nanoseconds>& own = times.emplace_back();
    for (const int64_t microseconds : rank) own.emplace_back(microseconds * 1000);
  }
  return times;
}

Simulation Replay() {
  const Program program(Generate("1f1b", {.ranks = kRanks, .microbatches = kMicrobatches}), 1);
  Costs costs;
  for (auto* times : {&costs.forward, &costs.backward, &costs.update}) {
    times->assign(kRanks, Nanoseconds{0});
  }
  ActionTimes times(program, costs);
  times.Replace(ActionKind::kForward, Times(kForwards), program);
  times.Replace(ActionKind::kBackward, Times(kBackwards), program);
  return Simulate(program, times, {.spans = true});
}

TEST(Replay, OfMeasuredActionsGivesTheMeasuredSpan) {
  const Simulation replay = Replay();
  const double span = static_cast<double>(replay.metrics.makespan.count()) / 1000;
  EXPECT_NEAR(span / kMeasuredMicroseconds, 1, 0.015);
  RecordProperty("signed_error", std::to_string(span / kMeasuredMicroseconds - 1));
  // One flush after the other: the exact step time is that span, so it knows the times too.
  EXPECT_EQ(replay.steady.step_time.numerator, replay.metrics.makespan.count());
  EXPECT_EQ(replay.steady.step_time.denominator, 1);
  const std::vector<IdleShares> idle = ExplainIdle(replay.trace);
  for (size_t rank = 0; rank < idle.size(); ++rank) {
    EXPECT_EQ(idle[rank].Total(), replay.metrics.ranks[rank].idle);
  }
  // The last stage (head and loss) is the slow one: beside it they idle for imbalance most of all
  // the causes that are no part of a perfect 1F1B.
  EXPECT_GT(idle[0].imbalance, idle[0].noise);
  EXPECT_GT(idle[0].imbalance, idle[7].imbalance);
}

TEST(Replay, TimesPerMicrobatchMustFitTheSchedule) {
  const Program program(Generate("1f1b", {.ranks = 2, .microbatches = 3}), 1);
  Costs costs;
  for (auto* times : {&costs.forward, &costs.backward, &costs.update}) {
    times->assign(2, Nanoseconds{1});
  }
  ActionTimes times(program, costs);
  const std::vector<Nanoseconds> three(3, Nanoseconds{5});
  EXPECT_THROW(times.Replace(ActionKind::kForward, {three}, program), Error);
  EXPECT_THROW(times.Replace(ActionKind::kForward, {three, {Nanoseconds{1}}}, program), Error);
  times.Replace(ActionKind::kForward, {three, three}, program);
  EXPECT_EQ(times.Of(ActionKind::kForward, 1, 7), 5);
  EXPECT_EQ(times.Of(ActionKind::kForward, 1, -1), 5);
  EXPECT_EQ(times.Of(ActionKind::kBackward, 1, 0), 1);
}

}  // namespace
}  // namespace pipelag
