// The largest stable step on a quadratic, without delay, with a delay of one update, and with error
// feedback: found with the real optimizers and corrections, against the roots of the recursions.
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/correction/correction.h"

namespace pipelag {
namespace {

/// f(x) = x² / 2 in one element of one tensor, with gradients `delay` updates old.
class Quadratic {
 public:
  Quadratic(float momentum, bool nesterov, int delay, bool correct)
      : layout_({.layers = 1, .hidden = 1, .heads = 1, .sequence = 1, .vocabulary = 1}, {0, 1}),
        delay_(delay) {
    optimizer_options_.name = "sgd-ema";
    optimizer_options_.momentum = momentum;
    optimizer_options_.nesterov = nesterov;
    correction_options_.name = correct ? "error-feedback" : "none";
  }

  /// Whether |x| shrinks in the long run. The recursion is linear, so its envelope is in the end
  /// that of its greatest root, however near to 1.
  bool Shrinks(float rate) const {
    constexpr int kWindow = 1000;  // longer than any period here
    constexpr int kWindows = 20;
    const auto optimizer =
        MakeCorrected(optimizer_options_, correction_options_, layout_, {.updates = delay_});
    float x = 1;
    float before = 1;
    float middle = 0;
    float end = 0;
    for (int n = 1; n <= kWindow * kWindows; ++n) {
      const float gradient = delay_ == 0 ? x : before;
      before = x;
      const TensorUpdate update = {.tensor = 0,
                                   .gradient = &gradient,
                                   .weights = &before,
                                   .learning_rate = rate,
                                   .number = n};
      float displacement = 0;
      optimizer->ComputeUpdate(update, &displacement);
      optimizer->Apply(update, &displacement, &x);
      if (std::fabs(x) > 1e10f) return false;
      if (std::fabs(x) + std::fabs(before) < 1e-10f) return true;
      const int window = (n - 1) / kWindow;
      if (window == kWindows / 2) middle = std::max(middle, std::fabs(x));
      if (window == kWindows - 1) end = std::max(end, std::fabs(x));
    }
    return end < middle;
  }

  float Limit(float bound) const {
    float stable = 0;
    float unstable = bound;
    while (unstable - stable > 2e-4f * unstable) {
      const float middle = (stable + unstable) / 2;
      (Shrinks(middle) ? stable : unstable) = middle;
    }
    return (stable + unstable) / 2;
  }

 private:
  StageLayout layout_;
  int delay_;
  OptimizerOptions optimizer_options_;
  CorrectionOptions correction_options_;
};

struct Limits {
  float momentum;
  float synchronous, delayed, corrected;
  float nesterov_synchronous, nesterov_delayed, nesterov_corrected;
};

class Stability : public testing::TestWithParam<Limits> {};

TEST_P(Stability, EndsWhereTheRecursionsRootsLeaveTheUnitCircle) {
  const Limits& limits = GetParam();
  const auto expect = [&](bool nesterov, int delay, bool correct, float expected) {
    const float found = Quadratic(limits.momentum, nesterov, delay, correct).Limit(1.5f * expected);
    EXPECT_NEAR(found / expected, 1, 6e-4)
        << "momentum " << limits.momentum << " Nesterov " << nesterov << " delay " << delay
        << " corrected " << correct << ": " << found;
  };
  expect(false, 0, false, limits.synchronous);
  expect(false, 1, false, limits.delayed);
  expect(false, 1, true, limits.corrected);
  expect(true, 0, false, limits.nesterov_synchronous);
  expect(true, 1, false, limits.nesterov_delayed);
  expect(true, 1, true, limits.nesterov_corrected);
}

INSTANTIATE_TEST_SUITE_P(
    Momentum, Stability,
    testing::Values(Limits{0.00f, 2.000f, 1.000f, 0.618f, 2.000f, 1.000f, 0.618f},
                    Limits{0.50f, 6.000f, 1.000f, 1.000f, 3.000f, 1.123f, 0.828f},
                    Limits{0.80f, 18.000f, 1.000f, 1.791f, 6.923f, 1.723f, 1.791f},
                    Limits{0.90f, 38.000f, 1.000f, 2.702f, 13.571f, 2.531f, 3.450f},
                    Limits{0.95f, 78.000f, 1.000f, 4.000f, 26.897f, 3.750f, 6.780f},
                    Limits{0.98f, 198.00f, 1.000f, 6.589f, 66.892f, 6.258f, 16.779f},
                    Limits{0.99f, 398.00f, 1.000f, 9.512f, 133.56f, 9.137f, 33.445f}));

}  // namespace
}  // namespace pipelag
