// Hours to a loss and where late gradients stop paying, on curves with known answers.
#include "traces/time_to_loss.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace pipelag {
namespace {

constexpr int kSteps = 100;

/// loss = first − slope · place, down to `floor`.
LossCurve Falling(const std::string& profile, double rate, uint64_t seed, double slope,
                  double floor = 0) {
  LossCurve curve{{"adamw", profile, "none"}, rate, seed, 10, {}, false, std::nullopt};
  for (int i = 1; i <= kSteps; ++i) curve.losses.push_back(std::max(5 - slope * i, floor));
  return curve;
}

const ScheduleTime kFlush{"1f1b", {"0", "1f1b@4x8"}, 4, 3.0};
const ScheduleTime kAsync{"2bw", {"1", "2bw@4x8"}, 4, 2.0};

TEST(TimesToLoss, SecondsAndGpuHoursOverSeeds) {
  const std::vector<LossCurve> curves = {Falling("0", 0.1, 1, 0.02), Falling("0", 0.1, 2, 0.04),
                                         Falling("0", 0.2, 1, 0.001), Falling("1", 0.1, 1, 0.02)};
  const auto times = TimesToLoss(curves, {kFlush, kAsync}, {4.0, 1.0});
  ASSERT_EQ(times.size(), 4u);
  EXPECT_EQ(times[0].schedule.name, "1f1b");
  EXPECT_EQ(times[0].learning_rate, 0.1);  // the other does not get there
  EXPECT_NEAR(times[0].steps->least, 25, 1e-9);
  EXPECT_NEAR(times[0].steps->greatest, 50, 1e-9);
  EXPECT_NEAR(times[0].seconds->mean, 37.5 * 3, 1e-9);
  EXPECT_NEAR(times[0].gpu_hours->mean, 37.5 * 3 * 4 / 3600, 1e-9);
  EXPECT_FALSE(times[1].steps.has_value());  // 1.0 is reached by one seed only
  EXPECT_NEAR(times[2].seconds->mean, 50 * 2, 1e-9);
}

TEST(TimesToLoss, DivergedRatesDoNotCount) {
  LossCurve diverged = Falling("1", 0.4, 1, 0.1);
  diverged.diverged = true;
  const auto times = TimesToLoss({Falling("1", 0.1, 1, 0.02), diverged}, {kAsync}, {4.0});
  ASSERT_EQ(times.size(), 1u);
  EXPECT_EQ(times[0].learning_rate, 0.1);
}

TEST(Payoffs, StopsWhereTheLateCurveFlattens) {
  // Equal slopes down to 4, where the late one stays: 1.5 times the steps, so it pays to there.
  const std::vector<LossCurve> curves = {Falling("0", 0.1, 1, 0.02),
                                         Falling("1", 0.1, 1, 0.02, 4.0)};
  const auto payoffs = Payoffs(curves, {kFlush, kAsync}, {4.0});
  ASSERT_EQ(payoffs.size(), 1u);
  EXPECT_EQ(payoffs[0].against, "1f1b");
  EXPECT_DOUBLE_EQ(payoffs[0].throughput_gain, 1.5);
  EXPECT_NEAR(*payoffs[0].pays_down_to, 4.0, 0.021);
  EXPECT_FALSE(payoffs[0].always_pays);
  // 50 steps of the synchronous one last as long as 75: at 50 / 1.5 it is 0.02 · 50 / 3 higher.
  EXPECT_NEAR(*payoffs[0].cancelling_loss, 1.0 / 3, 1e-9);
}

TEST(Payoffs, AlwaysAndNever) {
  const auto always =
      Payoffs({Falling("0", 0.1, 1, 0.02), Falling("1", 0.1, 1, 0.02)}, {kFlush, kAsync}, {4.0});
  EXPECT_TRUE(always[0].always_pays);
  const auto never =
      Payoffs({Falling("0", 0.1, 1, 0.02), Falling("1", 0.1, 1, 0.01)}, {kFlush, kAsync}, {4.0});
  EXPECT_FALSE(never[0].pays_down_to.has_value());
  EXPECT_TRUE(Payoffs({Falling("1", 0.1, 1, 0.02)}, {kAsync}, {4.0}).empty());
}

}  // namespace
}  // namespace pipelag
