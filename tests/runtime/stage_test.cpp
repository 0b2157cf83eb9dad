// The network against independent truths: finite differences, partitions of itself, the double
// version of itself, and properties every causal language model has.
#include "runtime/network/stage.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <thread>
#include <tuple>

#include "models/error.h"
#include "models/random.h"
#include "tests/runtime/network_kinds.h"
#include "tests/runtime/stage_chain.h"

namespace pipelag {
namespace {

/// Central differences with steps h, h/2 and h/4, extrapolated twice: the error is of order h^6.
template <class Function>
double Derivative(double* at, Function loss) {
  const double centre = *at;
  const auto difference = [&](double h) {
    *at = centre + h;
    const double above = loss();
    *at = centre - h;
    const double below = loss();
    *at = centre;
    return (above - below) / (2 * h);
  };
  constexpr double h = 4e-3;
  const double d1 = difference(h);
  const double d2 = difference(h / 2);
  const double d4 = difference(h / 4);
  const double r1 = (4 * d2 - d1) / 3;
  const double r2 = (4 * d4 - d2) / 3;
  return (16 * r2 - r1) / 15;
}

/// Without rotation the same shift of all keys changes no softmax: the gradient is zero.
bool Vanishes(const NetworkShape& shape, const StageTensor& tensor) {
  return shape.positions == PositionChoice::kLearned && tensor.name.ends_with("k_proj.bias");
}

double LargestOf(const double* values, int64_t count) {
  double largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, std::fabs(values[i]));
  return largest;
}

/// Kind of AllKinds, stages.
class FiniteDifferences : public testing::TestWithParam<std::tuple<size_t, int>> {};

// Derivatives that vanish (a shift of all keys changes no softmax; a token that does not occur)
// have no relative error: a gradient is held against the larger of itself and a thousandth of its
// tensor's.
TEST_P(FiniteDifferences, EveryParameterAndEveryInput) {
  const auto& [kind, stages] = GetParam();
  const NetworkShape shape = AllKinds(Tiny())[kind];
  constexpr int kBatch = 2;
  StageChain<double> chain(shape, stages, kBatch);
  Shake(chain, 0.4);
  const auto tokens = RandomTokens(shape, kBatch, 5);
  const auto targets = RandomTokens(shape, kBatch, 6);
  const double scale = 1.0 / static_cast<double>(tokens.size());
  chain.Forward(tokens.data(), targets.data());
  chain.Backward(tokens.data(), targets.data(), scale);
  const auto inputs = chain.inputs;

  int checked = 0;
  for (size_t s = 0; s < chain.networks.size(); ++s) {
    for (const StageTensor& tensor : chain.networks[s].layout().tensors()) {
      double* weights = chain.weights[s].data() + tensor.offset;
      const double* gradients = chain.gradients[s].data() + tensor.offset;
      if (Vanishes(shape, tensor)) {
        EXPECT_LT(LargestOf(gradients, tensor.elements()), 1e-15) << tensor.name;
        checked += static_cast<int>(tensor.elements());
        continue;
      }
      const double floor = 1e-3 * LargestOf(gradients, tensor.elements());
      ASSERT_GT(floor, 1e-6) << tensor.name;
      for (int64_t i = 0; i < tensor.elements(); ++i, ++checked) {
        const double expected = Derivative(
            weights + i, [&] { return scale * chain.Forward(tokens.data(), targets.data()); });
        ASSERT_NEAR(gradients[i], expected, 1e-7 * std::max(floor, std::fabs(expected)))
            << tensor.name << "[" << i << "]";
      }
    }
  }
  // Of a GPT-2; of a Llama of inner size 24 and one head of 4 keys: 64 + 2 · 32 + 64 + 3 · 192, two
  // norms, in either layer.
  if (kind == 0) {
    EXPECT_EQ(checked, 2 * (12 * 64 + 13 * 8) + (11 + 4 + 2 + 11) * 8);
  }
  if (kind == 7) {
    EXPECT_EQ(checked, 2 * (768 + 16) + (11 + 1 + 11) * 8);
  }

  for (size_t s = 1; s < chain.networks.size(); ++s) {
    chain.inputs[s] = inputs[s];
    const auto& gradients = chain.input_gradients[s];
    const double floor = 1e-3 * LargestOf(gradients.data(), static_cast<int64_t>(gradients.size()));
    for (size_t i = 0; i < gradients.size(); ++i) {
      const double expected = Derivative(&chain.inputs[s][i], [&] {
        return scale * chain.ForwardFrom(s, tokens.data(), targets.data());
      });
      ASSERT_NEAR(gradients[i], expected, 1e-7 * std::max(floor, std::fabs(expected)))
          << "input of stage " << s << " [" << i << "]";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Stages, FiniteDifferences,
                         testing::Combine(testing::Range<size_t>(0, 8), testing::Values(1, 2)));

class Kinds : public testing::TestWithParam<size_t> {};
INSTANTIATE_TEST_SUITE_P(StageNetwork, Kinds, testing::Range<size_t>(0, 8));

TEST_P(Kinds, LossAndGradientsDoNotDependOnThePartition) {
  const NetworkShape shape = AllKinds(Small())[GetParam()];
  constexpr int kBatch = 3;
  const auto tokens = RandomTokens(shape, kBatch, 7);
  const auto targets = RandomTokens(shape, kBatch, 8);
  const auto run = [&](int stages, double* loss) {
    StageChain<float> chain(shape, stages, kBatch);
    *loss = chain.Forward(tokens.data(), targets.data());
    chain.Backward(tokens.data(), targets.data(), 0.01f);
    return chain.Flatten(chain.gradients);
  };
  double whole_loss = 0;
  const auto whole = run(1, &whole_loss);
  for (int stages = 2; stages <= 4; ++stages) {
    double loss = 0;
    EXPECT_EQ(run(stages, &loss), whole) << stages << " stages";
    EXPECT_EQ(loss, whole_loss) << stages << " stages";
  }
}

TEST(StageNetwork, ResultsDoNotDependOnTheThread) {
  const NetworkShape shape = {
      .layers = 2, .hidden = 64, .heads = 2, .sequence = 64, .vocabulary = 256};
  const auto tokens = RandomTokens(shape, 4, 21);
  const auto targets = RandomTokens(shape, 4, 22);
  std::vector<std::vector<float>> gradients(3);
  const auto run = [&](size_t slot) {
    StageChain<float> chain(shape, 1, 4);
    for (int i = 0; i < 3; ++i) {
      chain.Forward(tokens.data(), targets.data());
      chain.Backward(tokens.data(), targets.data(), 0.01f);
    }
    gradients[slot] = chain.gradients[0];
  };
  run(0);
  std::thread first([&] { run(1); });
  std::thread second([&] { run(2); });
  first.join();
  second.join();
  EXPECT_EQ(gradients[1], gradients[0]);
  EXPECT_EQ(gradients[2], gradients[0]);
}

TEST(StageNetwork, GradientsOfMicrobatchesAddUpToThoseOfTheBatch) {
  const NetworkShape shape = Small();
  constexpr int kBatch = 8;
  const auto tokens = RandomTokens(shape, kBatch, 9);
  const auto targets = RandomTokens(shape, kBatch, 10);
  const float scale = 1.0f / static_cast<float>(tokens.size());
  StageChain<float> whole(shape, 1, kBatch);
  double whole_loss = whole.Forward(tokens.data(), targets.data());
  whole.Backward(tokens.data(), targets.data(), scale);
  StageChain<float> parts(shape, 1, 2);
  double parts_loss = 0;
  for (int part = 0; part < 4; ++part) {
    const auto at = static_cast<size_t>(part * 2 * shape.sequence);
    parts_loss += parts.Forward(&tokens[at], &targets[at]);
    parts.Backward(&tokens[at], &targets[at], scale);
  }
  EXPECT_NEAR(parts_loss / whole_loss, 1, 1e-6);
  for (const StageTensor& tensor : whole.networks[0].layout().tensors()) {
    float largest = 0;
    float difference = 0;
    for (int64_t i = tensor.offset; i < tensor.offset + tensor.elements(); ++i) {
      const auto at = static_cast<size_t>(i);
      largest = std::max(largest, std::fabs(whole.gradients[0][at]));
      difference = std::max(difference, std::fabs(whole.gradients[0][at] - parts.gradients[0][at]));
    }
    EXPECT_LT(difference, 1e-5f * largest) << tensor.name;
  }
}

TEST_P(Kinds, FloatFollowsDouble) {
  const NetworkShape shape = AllKinds(Small())[GetParam()];
  constexpr int kBatch = 2;
  const auto tokens = RandomTokens(shape, kBatch, 11);
  const auto targets = RandomTokens(shape, kBatch, 12);
  StageChain<float> narrow(shape, 2, kBatch);
  StageChain<double> wide(shape, 2, kBatch);
  Shake(narrow, 0.05);
  for (size_t s = 0; s < 2; ++s) {
    wide.weights[s].assign(narrow.weights[s].begin(), narrow.weights[s].end());
  }
  const double loss = wide.Forward(tokens.data(), targets.data());
  EXPECT_NEAR(narrow.Forward(tokens.data(), targets.data()) / loss, 1, 2e-6);
  wide.Backward(tokens.data(), targets.data(), 1);
  narrow.Backward(tokens.data(), targets.data(), 1);
  for (size_t s = 0; s < 2; ++s) {
    for (const StageTensor& tensor : wide.networks[s].layout().tensors()) {
      const double* expected = wide.gradients[s].data() + tensor.offset;
      const float* actual = narrow.gradients[s].data() + tensor.offset;
      const double largest =
          Vanishes(shape, tensor) ? 0.01 : LargestOf(expected, tensor.elements());
      for (int64_t i = 0; i < tensor.elements(); ++i) {
        ASSERT_NEAR(actual[i], expected[i], 1e-5 * largest) << tensor.name << "[" << i << "]";
      }
    }
  }
}

TEST_P(Kinds, ATokenChangesNothingBeforeIt) {
  const NetworkShape shape = AllKinds(Small())[GetParam()];
  StageChain<float> chain(shape, 2, 1);
  auto tokens = RandomTokens(shape, 1, 13);
  const auto targets = RandomTokens(shape, 1, 14);
  constexpr int kChanged = 13;
  chain.Forward(tokens.data(), targets.data());
  const std::vector<float> before = chain.inputs[1];
  tokens[kChanged] = static_cast<Token>((tokens[kChanged] + 1) % shape.vocabulary);
  chain.Forward(tokens.data(), targets.data());
  const auto row = [&](const std::vector<float>& x, int t) {
    return std::vector<float>(x.begin() + t * shape.hidden, x.begin() + (t + 1) * shape.hidden);
  };
  for (int t = 0; t < shape.sequence; ++t) {
    EXPECT_EQ(row(before, t) == row(chain.inputs[1], t), t < kChanged) << "position " << t;
  }
}

TEST(StageNetwork, FirstLossIsThatOfAGuess) {
  for (const int vocabulary : {11, 256}) {
    NetworkShape shape = Small();
    shape.vocabulary = vocabulary;
    StageChain<float> chain(shape, 1, 4);
    const auto tokens = RandomTokens(shape, 4, 15);
    const auto targets = RandomTokens(shape, 4, 16);
    const double loss =
        chain.Forward(tokens.data(), targets.data()) / static_cast<double>(tokens.size());
    EXPECT_NEAR(loss / std::log(vocabulary), 1, 0.02);
  }
}

TEST(StageNetwork, LearnsOneBatchByHeart) {
  const NetworkShape shape = {
      .layers = 2, .hidden = 32, .heads = 4, .sequence = 16, .vocabulary = 32};
  StageChain<float> chain(shape, 2, 2);
  const auto tokens = RandomTokens(shape, 2, 17);
  const auto targets = RandomTokens(shape, 2, 18);
  const float scale = 1.0f / static_cast<float>(tokens.size());
  std::vector<std::vector<float>> momentum = chain.gradients;
  double loss = 0;
  for (int step = 0; step < 300; ++step) {
    loss = scale * chain.Forward(tokens.data(), targets.data());
    for (auto& gradients : chain.gradients) std::fill(gradients.begin(), gradients.end(), 0.0f);
    chain.Backward(tokens.data(), targets.data(), scale);
    for (size_t s = 0; s < 2; ++s) {
      for (size_t i = 0; i < momentum[s].size(); ++i) {
        momentum[s][i] = 0.9f * momentum[s][i] + chain.gradients[s][i];
        chain.weights[s][i] -= 0.05f * momentum[s][i];
      }
    }
  }
  EXPECT_LT(loss, 0.01);
}

TEST(StageNetwork, LeavesGapsZeroAndAddsToGradients) {
  const NetworkShape shape = Tiny();
  StageChain<float> chain(shape, 2, 1);
  const auto tokens = RandomTokens(shape, 1, 19);
  const auto targets = RandomTokens(shape, 1, 20);
  chain.Forward(tokens.data(), targets.data());
  chain.Backward(tokens.data(), targets.data(), 1);
  const auto once = chain.gradients;
  chain.Backward(tokens.data(), targets.data(), 1);
  for (size_t s = 0; s < 2; ++s) {
    std::vector<bool> used(once[s].size(), false);
    for (const StageTensor& tensor : chain.networks[s].layout().tensors()) {
      float largest = 0;
      for (int64_t i = tensor.offset; i < tensor.offset + tensor.elements(); ++i) {
        used[static_cast<size_t>(i)] = true;
        largest = std::max(largest, std::fabs(once[s][static_cast<size_t>(i)]));
      }
      for (int64_t i = tensor.offset; i < tensor.offset + tensor.elements(); ++i) {
        const auto at = static_cast<size_t>(i);
        EXPECT_NEAR(chain.gradients[s][at], 2 * once[s][at], 1e-6f * largest) << tensor.name;
      }
    }
    for (size_t i = 0; i < used.size(); ++i) {
      if (!used[i]) {
        EXPECT_EQ(chain.gradients[s][i], 0.0f);
        EXPECT_EQ(chain.weights[s][i], 0.0f);
      }
    }
  }
}

TEST(StageNetwork, RefusesVocabulariesThatTokensCannotName) {
  NetworkShape shape = Tiny();
  shape.vocabulary = kMostTokens + 1;
  EXPECT_THROW(StageNetwork<float>(shape, {0, 2}, 1), Error);
}

}  // namespace
}  // namespace pipelag
