// Corrections against what they are said to be: equal to each other where derived so, nothing where
// they are off, and their formulas elsewhere.
#include "runtime/correction/correction.h"

#include <gmock/gmock.h>

#include "models/error.h"
#include "tests/runtime/optimizer_rules.h"

namespace pipelag {
namespace {

/// A smooth gradient that depends on the weights it is taken at.
void GradientAt(const StageLayout& layout, const std::vector<float>& weights,
                std::vector<float>& gradients) {
  for (const StageTensor& tensor : layout.tensors()) {
    for (int64_t i = 0; i < tensor.elements(); ++i) {
      const auto at = static_cast<size_t>(tensor.offset + i);
      const auto phase = static_cast<double>(Gradient(tensor, i, 0));
      gradients[at] = static_cast<float>(
          0.1 * std::sin(30 * phase + static_cast<double>(weights[at])) + 0.2 * phase);
    }
  }
}

struct Played {
  std::vector<std::vector<float>> versions;  ///< what gradients are taken at
  std::vector<float> final_weights;
};

/// `updates` of them with a warm-up, update n with the gradient at version max(0, n − delay).
Played Play(const std::string& optimizer, const CorrectionOptions& correction, int delay,
            int updates = 30, float decay = 0.1f) {
  PrepareThread();
  const StageLayout layout(Shape(), {0, 2});
  OptimizerOptions options;
  options.name = optimizer;
  options.weight_decay = decay;
  const auto one = MakeCorrected(options, correction, layout, {.updates = delay});
  Played played{{Initial(layout)}, {}};
  std::vector<float> gradients(played.versions[0].size());
  for (int n = 0; n < updates; ++n) {
    const auto& taken_at = played.versions[static_cast<size_t>(std::max(0, n - delay))];
    GradientAt(layout, taken_at, gradients);
    std::vector<float> next(gradients.size());
    one->Step(gradients.data(), played.versions.back().data(), next.data(),
              kRate * static_cast<float>(std::min(n + 1, 10)) / 10, n + 1, taken_at.data());
    played.versions.push_back(std::move(next));
  }
  const float* last = one->FinalWeights(played.versions.back().data());
  played.final_weights.assign(last, last + layout.size());
  return played;
}

CorrectionOptions Correct(const std::string& name) {
  CorrectionOptions options;
  options.name = name;
  return options;
}

class WithEveryOptimizer : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Correction, WithEveryOptimizer, testing::ValuesIn(OptimizerNames()));

TEST_P(WithEveryOptimizer, ErrorFeedbackIsWeightPrediction) {
  // What rounding can do to a sign, and to eigenvectors of one eigenvalue, is no small thing.
  const bool fragile = GetParam() == "lion" || GetParam() == "soap";
  for (const int delay : {1, 2}) {
    for (const float decay : {0.0f, 0.1f}) {
      CorrectionOptions feedback = Correct("error-feedback");
      feedback.decay_inside = true;
      const int updates = fragile ? 3 : 30;
      const Played a = Play(GetParam(), feedback, delay, updates, decay);
      const Played b = Play(GetParam(), Correct("weight-prediction"), delay, updates, decay);
      // One decays the weights that are read, the other its master copy: lr · decay · u apart.
      const double tolerance = decay == 0 ? 1e-5 : 1e-3;
      for (size_t n = 0; n < a.versions.size(); ++n) {
        for (size_t i = 0; i < a.versions[n].size(); ++i) {
          ASSERT_NEAR(a.versions[n][i], b.versions[n][i], tolerance) << "version " << n;
        }
      }
      EXPECT_TRUE(b.final_weights != b.versions.back());
    }
  }
}

TEST_P(WithEveryOptimizer, WithoutDelayEveryCorrectionIsNone) {
  const Played none = Play(GetParam(), Correct("none"), 0);
  for (const std::string& name : CorrectionNames()) {
    if (name == "basis-rotation") continue;  // another optimizer, delay or not
    const Played with = Play(GetParam(), Correct(name), 0);
    EXPECT_TRUE(with.versions == none.versions) << name;
    EXPECT_TRUE(with.final_weights == none.final_weights) << name;
  }
}

TEST_P(WithEveryOptimizer, StrengthZeroIsNone) {
  const Played none = Play(GetParam(), Correct("none"), 1);
  for (const char* name : {"error-feedback", "dc-asgd", "dc-asgd-adaptive"}) {
    CorrectionOptions off = Correct(name);
    // What DC-ASGD adds need not move Lion's signs.
    const bool moved = Play(GetParam(), off, 1).versions != none.versions;
    EXPECT_TRUE(moved || GetParam() == "lion") << name;
    off.strength = 0.0f;
    off.decay_inside = true;
    EXPECT_TRUE(Play(GetParam(), off, 1).versions == none.versions) << name;
  }
}

constexpr double kRounding = 3e-7;

/// Displacements of SGD without momentum are lr · g, so a correction's can be written down.
class OfPlainSgd : public testing::Test {
 protected:
  OfPlainSgd() : layout_(Shape(), {0, 2}) {}

  /// New weights of element 0 after updates with the given rates, gradients, and weights taken at
  /// 0.
  std::vector<float> Run(const CorrectionOptions& correction, const StageDelay& delay,
                         const std::vector<std::pair<float, float>>& rate_and_gradient) {
    OptimizerOptions options;
    options.name = "sgd";
    options.momentum = 0.0f;
    options.weight_decay = 0.5f;
    const auto one = MakeCorrected(options, correction, layout_, delay);
    std::vector<float> weights(static_cast<size_t>(layout_.size()));
    const std::vector<float> taken_at(weights.size());
    std::vector<float> gradients(weights.size());
    weights[0] = 1;
    std::vector<float> result;
    int64_t n = 0;
    for (const auto& [rate, gradient] : rate_and_gradient) {
      gradients[0] = gradient;
      one->Step(gradients.data(), weights.data(), weights.data(), rate, ++n, taken_at.data());
      result.push_back(weights[0]);
    }
    return result;
  }

  StageLayout layout_;
};

TEST_F(OfPlainSgd, ErrorFeedbackTakesTwiceTheUpdateLessTheOneBefore) {
  const auto x = Run(Correct("error-feedback"), {.updates = 1}, {{0.1f, 1}, {0.2f, 2}, {0.2f, 3}});
  EXPECT_NEAR(x[0], 0.95f - 2 * 0.1f, kRounding);
  EXPECT_NEAR(x[1], x[0] * 0.9f - (2 * 0.4f - 0.1f), kRounding);
  EXPECT_NEAR(x[2], x[1] * 0.9f - (2 * 0.6f - 0.4f), kRounding);
}

TEST_F(OfPlainSgd, ErrorFeedbackReachesAsFarAsTheDelayAndItsStrengthSay) {
  CorrectionOptions options = Correct("error-feedback");
  options.strength = 0.5f;
  const auto x = Run(options, {.updates = 3}, {{0.1f, 1}, {0.1f, 2}});
  EXPECT_NEAR(x[1], x[0] * 0.95f - (0.2f + 1.5f * 0.1f), kRounding);
}

TEST_F(OfPlainSgd, ErrorFeedbackHasSwitches) {
  CorrectionOptions options = Correct("error-feedback");
  options.rescale_previous = true;
  auto x = Run(options, {.updates = 1}, {{0.1f, 1}, {0.2f, 2}});
  EXPECT_NEAR(x[1], x[0] * 0.9f - (2 * 0.4f - 0.2f), kRounding);
  options = Correct("error-feedback");
  options.repeat_first = true;
  x = Run(options, {.updates = 1}, {{0.1f, 1}, {0.2f, 2}});
  EXPECT_NEAR(x[0], 0.95f - 0.1f, kRounding);
  EXPECT_NEAR(x[1], x[0] * 0.9f - (2 * 0.4f - 0.1f), kRounding);
  options = Correct("error-feedback");
  options.decay_inside = true;
  x = Run(options, {.updates = 1}, {{0.1f, 1}, {0.2f, 2}});
  EXPECT_NEAR(x[0], 1 - 2 * (0.1f + 0.05f), kRounding);
  EXPECT_NEAR(x[1], x[0] - (2 * (0.4f + 0.1f * x[0]) - 0.15f), kRounding);
}

TEST_F(OfPlainSgd, ASynchronousStartIsLeftAlone) {
  const auto x = Run(Correct("error-feedback"), {.updates = 1, .synchronous_until = 2},
                     {{0.1f, 1}, {0.1f, 2}, {0.1f, 3}, {0.1f, 4}});
  EXPECT_NEAR(x[1], x[0] * 0.95f - 0.2f, kRounding);
  EXPECT_NEAR(x[2], x[1] * 0.95f - 2 * 0.3f, kRounding);  // as if nothing had been before
  EXPECT_NEAR(x[3], x[2] * 0.95f - (2 * 0.4f - 0.3f), kRounding);
}

TEST_F(OfPlainSgd, DcAsgdFollowsItsFormulas) {
  CorrectionOptions options = Correct("dc-asgd");
  options.strength = 0.3f;
  auto x = Run(options, {.updates = 1}, {{0.1f, 2}});
  EXPECT_NEAR(x[0], 0.95f - 0.1f * (2 + 0.3f * 4 * (1 - 0)), kRounding);
  options.name = "dc-asgd-adaptive";
  x = Run(options, {.updates = 1}, {{0.1f, 2}});
  const float strength = 0.3f / std::sqrt(0.05f * 4 + 1e-7f);
  EXPECT_NEAR(x[0], 0.95f - 0.1f * (2 + strength * 4), 1e-6);
}

TEST_F(OfPlainSgd, RatesFollowPipeMareAndDamping) {
  CorrectionOptions options = Correct("pipemare");
  options.anneal_updates = 2;
  auto x = Run(options, {.updates = 4}, {{0.1f, 1}, {0.1f, 1}, {0.1f, 1}});
  EXPECT_NEAR(x[0], 1 - 0.025f * 0.5f - 0.025f, kRounding);
  EXPECT_NEAR(x[1], x[0] * (1 - 0.05f * 0.5f) - 0.05f, kRounding);
  EXPECT_NEAR(x[2], x[1] * 0.95f - 0.1f, kRounding);
  options = Correct("rate-damping");
  options.exponent = 1.0f;
  x = Run(options, {.updates = 4}, {{0.1f, 1}});
  EXPECT_NEAR(x[0], 1 - 0.025f * 0.5f - 0.025f, kRounding);
}

TEST_F(OfPlainSgd, WeightPredictionContinuesTheLastUpdate) {
  CorrectionOptions options = Correct("weight-prediction");
  options.horizon = 3.0f;
  const auto x = Run(options, {.updates = 1}, {{0.1f, 1}, {0.1f, 2}});
  const float first = 0.95f - 0.1f;
  const float second = first * 0.95f - 0.2f;
  EXPECT_NEAR(x[0], first + 3 * (first - 1), kRounding);
  EXPECT_NEAR(x[1], second + 3 * (second - first), kRounding);
}

std::string Message(const std::string& optimizer, const CorrectionOptions& correction) {
  OptimizerOptions options;
  options.name = optimizer;
  try {
    MakeCorrected(options, correction, StageLayout(Shape(), {0, 2}), {.updates = 1});
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Correction, WrongNamesAndNumbersAreAnsweredInOneSentence) {
  EXPECT_EQ(Message("adamw", Correct("error-feedbak")),
            "there is no correction \"error-feedbak\"; did you mean \"error-feedback\"?");
  EXPECT_EQ(Message("adamv", Correct("error-feedback")),
            "there is no optimizer \"adamv\"; did you mean \"adamw\"?");
  EXPECT_EQ(Message("muon", Correct("basis-rotation")),
            "basis-rotation rotates adamw and does not go with muon");
  CorrectionOptions options = Correct("weight-prediction");
  options.horizon = -1.0f;
  EXPECT_THAT(Message("adamw", options), testing::HasSubstr("-1 updates ahead"));
  options = Correct("pipemare");
  options.anneal_updates = 0;
  EXPECT_THAT(Message("adamw", options), testing::HasSubstr("annealed over 0 updates"));
}

}  // namespace
}  // namespace pipelag
