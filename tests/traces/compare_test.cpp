// Comparison of runs: of a run with itself, with one that is off by known factors, with a stranger.
#include "traces/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "models/error.h"
#include "tests/reason.h"
#include "tests/traces/sample.h"

namespace pipelag {
namespace {

TEST(Compare, ARunWithItselfHasNoError) {
  const Trace trace = sample::GPipe(4, 8, 3, 1000, 2000, 100);
  const Comparison comparison = Compare(trace, trace);
  EXPECT_EQ(comparison.joined, 4 * 8 * 2 * 2);  // step 0 is left out
  EXPECT_EQ(comparison.only_measured, 0);
  EXPECT_EQ(comparison.only_simulated, 0);
  EXPECT_EQ(comparison.step_error, 0);
  ASSERT_EQ(comparison.rows.size(), 8U);
  for (const ComparisonRow& row : comparison.rows) {
    EXPECT_EQ(row.error, 0);
    EXPECT_EQ(row.actions, 16);
  }
  EXPECT_EQ(comparison.rows[0].kind, ActionKind::kForward);
  EXPECT_EQ(comparison.rows[1].kind, ActionKind::kBackward);
  EXPECT_EQ(comparison.rows[2].rank, 1);
  EXPECT_EQ(comparison.measured_bubble.steady_state, comparison.simulated_bubble.steady_state);
}

TEST(Compare, FindsKnownErrors) {
  const Trace measured = sample::GPipe(2, 4, 3, 1000, 2000, 0);
  const Trace simulated = sample::GPipe(2, 4, 3, 1100, 1800, 0);
  const Comparison comparison = Compare(measured, simulated);
  for (const ComparisonRow& row : comparison.rows) {
    EXPECT_EQ(row.error, row.kind == ActionKind::kForward ? 0.1 : -0.1);
  }
  EXPECT_EQ(comparison.measured_step, (StepTime{15'000, 1}));
  EXPECT_EQ(comparison.simulated_step, (StepTime{14'500, 1}));
  EXPECT_EQ(comparison.step_error, -500.0 / 15'000.0);
}

TEST(Compare, PrefersTheExactStepTime) {
  const Trace trace = sample::GPipe(2, 4, 3, 1000, 2000, 0);
  const Comparison comparison = Compare(trace, trace, 1, StepTime{31'000, 2});
  EXPECT_EQ(comparison.simulated_step, (StepTime{31'000, 2}));
  EXPECT_EQ(comparison.step_error, 1.0 / 30.0);
  EXPECT_EQ(comparison.simulated_bubble.steady_state, 7.0 / 31.0);
  EXPECT_EQ(comparison.measured_bubble.steady_state, 1.0 / 5.0);
}

TEST(Compare, JoinsNoActionsOfStepsOfAnotherSize) {
  const Trace trace = sample::GPipe(2, 4, 3, 10, 20, 0);
  Trace replicated = trace;
  replicated.replicas = 2;
  for (const Trace& other :
       {sample::GPipe(2, 2, 3, 10, 20, 0), sample::GPipe(3, 4, 3, 10, 20, 0), replicated}) {
    EXPECT_THAT(ReasonOf([&] { Compare(trace, other); }), testing::HasSubstr("same size"));
  }
}

TEST(Compare, CountsWhatOnlyOneSideHas) {
  const Trace measured = sample::GPipe(2, 2, 3, 10, 20, 0);
  const Trace simulated = sample::GPipe(2, 2, 2, 10, 20, 0);
  const Comparison comparison = Compare(measured, simulated, 0);
  EXPECT_EQ(comparison.joined, 16);
  EXPECT_EQ(comparison.only_measured, 8);
  EXPECT_EQ(Compare(simulated, measured, 0).only_simulated, 8);
}

TEST(Compare, SomethingAgainstNothingIsInfinitelyOff) {
  Trace measured = sample::Empty(1, 1, 1);
  measured.spans = {sample::Act(0, ActionKind::kUpdate, 0, 0, 0)};
  Trace simulated = measured;
  EXPECT_EQ(Compare(measured, simulated, 0).rows[0].error, 0);
  simulated.spans[0].end = Nanoseconds{5};
  EXPECT_TRUE(std::isinf(Compare(measured, simulated, 0).rows[0].error));
  EXPECT_EQ(Compare(simulated, measured, 0).rows[0].error, -1);
}

TEST(Compare, StrangersAreRefused) {
  const Trace trace = sample::GPipe(2, 2, 3, 10, 20, 0);
  EXPECT_THROW(Compare(trace, sample::Empty(2, 2, 3)), Error);
  EXPECT_THROW(Compare(trace, trace, 3), Error);  // nothing but warm-up
  Trace other = trace;
  for (Span& span : other.spans) span.stage += 2;
  EXPECT_THROW(Compare(trace, other), Error);
}

}  // namespace
}  // namespace pipelag
