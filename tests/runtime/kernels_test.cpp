// Float kernels against their double versions and against formulas written out here, at sizes with
// and without a partial vector at the end.
#include "runtime/network/kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <thread>
#include <vector>

#include "models/random.h"
#include "runtime/network/gemm.h"
#include "runtime/network/lanes.h"

namespace pipelag {
namespace {

template <class Real>
std::vector<Real> Normal(int64_t count, uint64_t seed, double deviation = 1) {
  std::vector<Real> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    // Rounded to float first, so that both versions start from the same numbers.
    values[i] =
        static_cast<Real>(static_cast<float>(deviation * StandardNormal(RandomBits(seed, i))));
  }
  return values;
}

void ExpectClose(const std::vector<float>& actual, const std::vector<double>& expected,
                 double tolerance, const char* what) {
  ASSERT_EQ(actual.size(), expected.size());
  double largest = 0;
  for (const double value : expected) largest = std::max(largest, std::fabs(value));
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], tolerance * largest) << what << " [" << i << "]";
  }
}

TEST(Lanes, ExponentialIsAccurate) {
  for (double x = -87; x < 88; x += 0.00371) {
    const float rounded = static_cast<float>(x);
    const double expected = std::exp(static_cast<double>(rounded));
    ASSERT_NEAR(static_cast<double>(Exp(Fill(rounded))[3]) / expected, 1, 1.5e-7) << x;
  }
  EXPECT_EQ(Exp(Fill(0.0f))[0], 1.0f);
  EXPECT_GT(Exp(Fill(-1e30f))[0], 0.0f);
  EXPECT_TRUE(std::isfinite(Exp(Fill(1e30f))[0]));
}

class Widths : public testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Kernels, Widths, testing::Values(1, 3, 8, 11, 16, 37, 256));

template <class Real>
struct NormResult {
  std::vector<Real> y, x_gradient, gain_gradient, shift_gradient;
};

template <class Real>
NormResult<Real> RunNorm(int64_t rows, int64_t cols) {
  const auto x = Normal<Real>(rows * cols, 1, 3);
  const auto gain = Normal<Real>(cols, 2);
  const auto shift = Normal<Real>(cols, 3);
  const auto y_gradient = Normal<Real>(rows * cols, 4);
  std::vector<Real> mean(static_cast<size_t>(rows)), deviation(static_cast<size_t>(rows));
  NormResult<Real> result{std::vector<Real>(x.size()), Normal<Real>(rows * cols, 5),
                          Normal<Real>(cols, 6), Normal<Real>(cols, 7)};
  NormForward(rows, cols, x.data(), gain.data(), shift.data(), mean.data(), deviation.data(),
              result.y.data());
  NormBackward(rows, cols, y_gradient.data(), x.data(), gain.data(), mean.data(), deviation.data(),
               result.x_gradient.data(), result.gain_gradient.data(), result.shift_gradient.data());
  return result;
}

TEST_P(Widths, NormInFloatFollowsDouble) {
  const auto narrow = RunNorm<float>(5, GetParam());
  const auto wide = RunNorm<double>(5, GetParam());
  ExpectClose(narrow.y, wide.y, 1e-6, "y");
  ExpectClose(narrow.x_gradient, wide.x_gradient, 1e-5, "x gradient");
  ExpectClose(narrow.gain_gradient, wide.gain_gradient, 1e-5, "gain gradient");
  ExpectClose(narrow.shift_gradient, wide.shift_gradient, 1e-6, "shift gradient");
}

TEST_P(Widths, NormYieldsMeanAndDeviation) {
  const int64_t cols = GetParam();
  const auto x = Normal<double>(cols, 8, 2);
  const std::vector<double> gain(static_cast<size_t>(cols), 1.0);
  const std::vector<double> shift(static_cast<size_t>(cols), 0.0);
  std::vector<double> y(static_cast<size_t>(cols));
  double mean = 0;
  double deviation = 0;
  NormForward<double>(1, cols, x.data(), gain.data(), shift.data(), &mean, &deviation, y.data());
  const double expected_mean = std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(cols);
  double variance = 0;
  for (const double value : x) variance += std::pow(value - expected_mean, 2);
  variance /= static_cast<double>(cols);
  EXPECT_NEAR(mean, expected_mean, 1e-14);
  EXPECT_NEAR(deviation * std::sqrt(variance + 1e-5), 1, 1e-13);
  EXPECT_NEAR(y[0], (x[0] - expected_mean) / std::sqrt(variance + 1e-5), 1e-13);
}

double GeluFormula(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

TEST_P(Widths, GeluIsTheTanhFormAndSoIsItsDerivative) {
  const int64_t cols = GetParam();
  auto x = Normal<float>(2 * cols, 9, 3);
  auto wide = Normal<double>(2 * cols, 9, 3);
  const auto bias = Normal<float>(cols, 10);
  const auto wide_bias = Normal<double>(cols, 10);
  std::vector<float> y(x.size());
  std::vector<double> wide_y(x.size());
  BiasGeluForward(2, cols, bias.data(), x.data(), y.data());
  BiasGeluForward(2, cols, wide_bias.data(), wide.data(), wide_y.data());
  auto gradient = Normal<float>(2 * cols, 11);
  auto wide_gradient = Normal<double>(2 * cols, 11);
  const auto incoming = wide_gradient;
  std::vector<float> bias_gradient(static_cast<size_t>(cols));
  std::vector<double> wide_bias_gradient(static_cast<size_t>(cols));
  BiasGeluBackward(2, cols, x.data(), gradient.data(), bias_gradient.data());
  BiasGeluBackward(2, cols, wide.data(), wide_gradient.data(), wide_bias_gradient.data());
  for (size_t i = 0; i < y.size(); ++i) {
    ASSERT_NEAR(wide_y[i], GeluFormula(wide[i]), 1e-13);
    constexpr double h = 1e-4;
    const double slope = (8 * (GeluFormula(wide[i] + h) - GeluFormula(wide[i] - h)) -
                          (GeluFormula(wide[i] + 2 * h) - GeluFormula(wide[i] - 2 * h))) /
                         (12 * h);
    ASSERT_NEAR(wide_gradient[i], incoming[i] * slope, 1e-10);
  }
  ExpectClose(x, wide, 1e-6, "biased");
  ExpectClose(y, wide_y, 1e-6, "gelu");
  ExpectClose(gradient, wide_gradient, 1e-6, "gradient");
  ExpectClose(bias_gradient, wide_bias_gradient, 1e-6, "bias gradient");
}

TEST(Kernels, GeluKeepsFarValues) {
  std::vector<float> x = {-100, -20, -6, 6, 20, 100};
  const std::vector<float> bias(x.size());
  std::vector<float> y(x.size());
  BiasGeluForward<float>(1, 6, bias.data(), x.data(), y.data());
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(y[i], 0, 1e-8);
  for (size_t i = 3; i < 6; ++i) EXPECT_FLOAT_EQ(y[i], x[i]);
}

TEST_P(Widths, CausalSoftmaxRows) {
  const int64_t size = GetParam();
  auto scores = Normal<float>(size * size, 12, 3);
  auto wide = Normal<double>(size * size, 12, 3);
  const auto raw = wide;
  CausalSoftmaxForward(size, 0.5f, scores.data());
  CausalSoftmaxForward(size, 0.5, wide.data());
  for (int64_t t = 0; t < size; ++t) {
    double sum = 0;
    double weight = 0;
    for (int64_t j = 0; j <= t; ++j)
      weight += std::exp(0.5 * raw[static_cast<size_t>(t * size + j)]);
    for (int64_t j = 0; j < size; ++j) {
      const double p = wide[static_cast<size_t>(t * size + j)];
      sum += p;
      const double expected =
          j <= t ? std::exp(0.5 * raw[static_cast<size_t>(t * size + j)]) / weight : 0;
      ASSERT_NEAR(p, expected, 1e-13);
    }
    ASSERT_NEAR(sum, 1, 1e-13);
  }
  ExpectClose(scores, wide, 1e-6, "probabilities");

  auto gradient = Normal<float>(size * size, 13);
  auto wide_gradient = Normal<double>(size * size, 13);
  CausalSoftmaxBackward(size, 0.5f, scores.data(), gradient.data());
  CausalSoftmaxBackward(size, 0.5, wide.data(), wide_gradient.data());
  for (int64_t t = 0; t < size; ++t) {
    double sum = 0;
    for (int64_t j = 0; j < size; ++j) sum += wide_gradient[static_cast<size_t>(t * size + j)];
    ASSERT_NEAR(sum, 0, 1e-12) << "adding a constant to all scores changes nothing";
  }
  ExpectClose(gradient, wide_gradient, 2e-6, "score gradient");
}

TEST_P(Widths, CrossEntropyRows) {
  const int64_t cols = GetParam();
  constexpr int64_t kRows = 3;
  auto logits = Normal<float>(kRows * cols, 14, 3);
  auto wide = Normal<double>(kRows * cols, 14, 3);
  const auto raw = wide;
  std::vector<Token> targets;
  for (int64_t i = 0; i < kRows; ++i) targets.push_back(static_cast<Token>(i * 7 % cols));
  double expected = 0;
  for (int64_t i = 0; i < kRows; ++i) {
    double sum = 0;
    for (int64_t j = 0; j < cols; ++j) sum += std::exp(raw[static_cast<size_t>(i * cols + j)]);
    expected +=
        std::log(sum) - raw[static_cast<size_t>(i * cols + targets[static_cast<size_t>(i)])];
  }
  EXPECT_NEAR(CrossEntropyForward(kRows, cols, targets.data(), wide.data()), expected, 1e-12);
  EXPECT_NEAR(CrossEntropyForward(kRows, cols, targets.data(), logits.data()), expected,
              2e-6 * (1 + expected));
  ExpectClose(logits, wide, 1e-6, "probabilities");
  std::vector<float> gradient(logits.size());
  std::vector<double> wide_gradient(wide.size());
  CrossEntropyBackward(kRows, cols, logits.data(), targets.data(), 0.25f, gradient.data());
  CrossEntropyBackward(kRows, cols, wide.data(), targets.data(), 0.25, wide_gradient.data());
  ExpectClose(gradient, wide_gradient, 2e-6, "logit gradient");
  for (int64_t i = 0; i < kRows; ++i) {
    const auto begin = wide_gradient.begin() + i * cols;
    EXPECT_NEAR(std::accumulate(begin, begin + cols, 0.0), 0, 1e-14);
    const auto narrow = gradient.begin() + i * cols;
    EXPECT_NEAR(std::accumulate(narrow, narrow + cols, 0.0), 0, 1e-7);
  }
}

TEST(CrossEntropy, StaysFiniteWhenTheTargetIsHopeless) {
  std::vector<float> logits = {0, 500};
  const Token target = 0;
  EXPECT_FLOAT_EQ(static_cast<float>(CrossEntropyForward<float>(1, 2, &target, logits.data())),
                  500);
}

TEST(PrepareThread, MakesSubnormalFloatsZero) {
#ifndef __SSE3__
  GTEST_SKIP() << "only done where it is known to be slow, on x86";
#endif
  std::thread([] {
    PrepareThread();
    volatile float small = 1e-38F;
    volatile float subnormal = 1e-40F;
    EXPECT_EQ(small * 0.01F, 0.0F);
    EXPECT_EQ(subnormal * 1e10F, 0.0F);
  }).join();
}

TEST(Multiply, AllFormsAgreeWithTheDoubleLoop) {
  PrepareThread();
  constexpr int64_t m = 13, n = 10, k = 21, slack = 3;
  for (const Transpose ta : {Transpose::kNo, Transpose::kYes}) {
    for (const Transpose tb : {Transpose::kNo, Transpose::kYes}) {
      const int64_t lda = (ta == Transpose::kYes ? m : k) + slack;
      const int64_t ldb = (tb == Transpose::kYes ? k : n) + slack;
      const int64_t ldc = n + slack;
      for (const double beta : {0.0, 1.0, -0.5}) {
        auto c = Normal<float>(m * ldc, 17);
        auto wide_c = Normal<double>(m * ldc, 17);
        const auto before = c;
        Multiply<float>(ta, tb, m, n, k, 1.5f, Normal<float>(40 * 40, 15).data(), lda,
                        Normal<float>(40 * 40, 16).data(), ldb, static_cast<float>(beta), c.data(),
                        ldc);
        Multiply<double>(ta, tb, m, n, k, 1.5, Normal<double>(40 * 40, 15).data(), lda,
                         Normal<double>(40 * 40, 16).data(), ldb, beta, wide_c.data(), ldc);
        ExpectClose(c, wide_c, 1e-6, "product");
        for (int64_t i = 0; i < m; ++i) {
          for (int64_t j = n; j < ldc; ++j) {
            ASSERT_EQ(c[static_cast<size_t>(i * ldc + j)],
                      before[static_cast<size_t>(i * ldc + j)]);
          }
        }
      }
    }
  }
  // One entry by hand: (1 2; 3 4)ᵀ · (5; 6) = (1·5 + 3·6; 2·5 + 4·6).
  const double a[] = {1, 2, 3, 4};
  const double b[] = {5, 6};
  double c[2];
  Multiply<double>(Transpose::kYes, Transpose::kNo, 2, 1, 2, 1, a, 2, b, 1, 0, c, 1);
  EXPECT_EQ(c[0], 23);
  EXPECT_EQ(c[1], 34);
}

}  // namespace
}  // namespace pipelag
