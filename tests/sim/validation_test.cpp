// Errors of runs, and what is said of many.
#include "sim/validation.h"

#include <gtest/gtest.h>

namespace pipelag {
namespace {

TEST(RunErrors, ArePositiveForWhatIsPredictedTooSlow) {
  const PredictedRun predicted{
      .step_time_s = 2, .tokens_per_s_per_gpu = 500, .tflops_per_gpu = 100, .peak_memory_gib = 30};
  EXPECT_DOUBLE_EQ(*ErrorsOf({.step_time_s = 1.6}, predicted).time, 0.25);
  EXPECT_DOUBLE_EQ(*ErrorsOf({.tokens_per_s_per_gpu = 600}, predicted).time, 0.2);
  EXPECT_DOUBLE_EQ(*ErrorsOf({.tflops_per_gpu = 75}, predicted).time, -0.25);
  EXPECT_DOUBLE_EQ(*ErrorsOf({.peak_memory_gib = 40}, predicted).memory, -0.25);
  EXPECT_FALSE(ErrorsOf({.peak_memory_gib = 40}, predicted).time);
  const RunErrors layer =
      ErrorsOf({.forward_s = 0.01, .backward_s = 0.02}, {.forward_s = 0.012, .backward_s = 0.019});
  EXPECT_NEAR(*layer.forward, 0.2, 1e-12);
  EXPECT_NEAR(*layer.backward, -0.05, 1e-12);
  EXPECT_FALSE(ErrorsOf({.tokens_per_s_per_gpu = 600}, {.step_time_s = 1}).time);
}

TEST(Summaries, AreOfTheErrorsSizes) {
  const ErrorSummary summary = Summarize({0.1, -0.3, 0.2, -0.05, 0.0});
  EXPECT_EQ(summary.runs, 5);
  EXPECT_DOUBLE_EQ(summary.median, 0.1);
  EXPECT_DOUBLE_EQ(summary.p95, 0.28);  // a fifth of the way back from 0.3 to 0.2
  EXPECT_DOUBLE_EQ(summary.worst, 0.3);
  EXPECT_DOUBLE_EQ(summary.bias, 0.0);
  EXPECT_EQ(Summarize({}).runs, 0);
}

}  // namespace
}  // namespace pipelag
