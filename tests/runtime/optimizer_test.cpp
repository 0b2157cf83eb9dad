// SGD, AdamW and Muon against their formulas in double, and what holds of every optimizer.
#include "runtime/optimizer/optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/error.h"
#include "runtime/optimizer/muon.h"
#include "tests/runtime/optimizer_rules.h"

namespace pipelag {
namespace {

TEST(Sgd, FollowsItsFormula) {
  OptimizerOptions options;
  options.name = "sgd";
  options.momentum = 0.8f;
  options.weight_decay = 0.3f;
  const auto make = [] {
    auto b = std::make_shared<Tensor>();
    return Rule([b](const StageTensor& tensor, int, const Tensor& g, Tensor& x) {
      b->resize(x.size());
      const double wd = tensor.role == TensorRole::kVector ? 0 : 0.3;
      for (size_t i = 0; i < x.size(); ++i) {
        (*b)[i] = 0.8 * (*b)[i] + g[i];
        x[i] = x[i] * (1 - static_cast<double>(kRate) * wd) - static_cast<double>(kRate) * (*b)[i];
      }
    });
  };
  ExpectFollows(options, make, Every, 1e-6);
}

TEST(AdamW, FollowsItsFormulaWithDefaults) {
  ExpectFollows(
      {}, [] { return AdamWRule(0.9, 0.95, 1e-8, 0.1); }, Every, 1e-6);
}

TEST(AdamW, TakesOverrides) {
  OptimizerOptions options;
  options.beta1 = 0.7f;
  options.beta2 = 0.99f;
  options.epsilon = 1e-3f;
  options.weight_decay = 0.5f;
  ExpectFollows(
      options, [] { return AdamWRule(0.7, 0.99, 1e-3, 0.5); }, Every, 1e-6);
}

TEST(Muon, FollowsItsFormulaOnMatrices) {
  OptimizerOptions options;
  options.name = "muon";
  const auto make = [] {
    auto b = std::make_shared<Tensor>();
    return Rule([b](const StageTensor& tensor, int, const Tensor& g, Tensor& x) {
      b->resize(x.size());
      Tensor nesterov(x.size());
      for (size_t i = 0; i < x.size(); ++i) {
        (*b)[i] = 0.95 * (*b)[i] + g[i];
        nesterov[i] = g[i] + 0.95 * (*b)[i];
      }
      const Tensor o = NewtonSchulz(nesterov, static_cast<size_t>(tensor.rows),
                                    static_cast<size_t>(tensor.cols));
      const double scale = 0.2 * std::sqrt(std::max(tensor.rows, tensor.cols));
      for (size_t i = 0; i < x.size(); ++i) {
        x[i] = x[i] * (1 - static_cast<double>(kRate) * 0.1) -
               static_cast<double>(kRate) * scale * o[i];
      }
    });
  };
  ExpectFollows(
      options, make, [](const StageTensor& tensor) { return tensor.role == TensorRole::kMatrix; },
      1e-6);
}

TEST(Muon, LeavesTheRestToAdamW) {
  OptimizerOptions options;
  options.name = "muon";
  ExpectFollows(
      options, [] { return AdamWRule(0.9, 0.95, 1e-8, 0.1); },
      [](const StageTensor& tensor) { return tensor.role != TensorRole::kMatrix; }, 1e-6);
}

/// Eigenvalues of a symmetric matrix by Jacobi's rotations.
Tensor Eigenvalues(Tensor a, size_t n) {
  for (int sweep = 0; sweep < 60; ++sweep) {
    for (size_t p = 0; p < n; ++p) {
      for (size_t q = p + 1; q < n; ++q) {
        if (std::fabs(a[p * n + q]) < 1e-300) continue;
        const double angle = 0.5 * std::atan2(2 * a[p * n + q], a[p * n + p] - a[q * n + q]);
        const double c = std::cos(angle);
        const double s = std::sin(angle);
        for (size_t k = 0; k < n; ++k) {
          const double x = a[k * n + p];
          const double y = a[k * n + q];
          a[k * n + p] = c * x + s * y;
          a[k * n + q] = c * y - s * x;
        }
        for (size_t k = 0; k < n; ++k) {
          const double x = a[p * n + k];
          const double y = a[q * n + k];
          a[p * n + k] = c * x + s * y;
          a[q * n + k] = c * y - s * x;
        }
      }
    }
  }
  Tensor values(n);
  for (size_t i = 0; i < n; ++i) values[i] = a[i * n + i];
  return values;
}

TEST(Orthogonalise, BringsSingularValuesNearOne) {
  PrepareThread();
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{12, 48}, {48, 12}, {16, 24}}) {
    std::vector<float> matrix;
    for (int64_t i = 0; i < rows * cols; ++i) {
      matrix.push_back(
          static_cast<float>(7 * StandardNormal(RandomBits(8, static_cast<uint64_t>(i)))));
    }
    std::vector<float> workspace(static_cast<size_t>(OrthogonaliseWorkspace(rows, cols)));
    Orthogonalise(rows, cols, matrix.data(), workspace.data());
    const auto m = static_cast<size_t>(rows);
    const auto n = static_cast<size_t>(cols);
    const Tensor x(matrix.begin(), matrix.end());
    const Tensor square =
        rows < cols ? Product(x, Flip(x, m, n), m, n, m) : Product(Flip(x, m, n), x, n, m, n);
    for (const double eigenvalue : Eigenvalues(square, std::min(m, n))) {
      EXPECT_GT(std::sqrt(eigenvalue), 0.5) << rows << "x" << cols;
      EXPECT_LT(std::sqrt(eigenvalue), 1.5) << rows << "x" << cols;
    }
  }
}

TEST(Orthogonalise, LeavesZeroAlone) {
  PrepareThread();
  std::vector<float> matrix(12, 0.0f);
  std::vector<float> workspace(static_cast<size_t>(OrthogonaliseWorkspace(3, 4)));
  Orthogonalise(3, 4, matrix.data(), workspace.data());
  EXPECT_THAT(matrix, testing::Each(0.0f));
}

class EveryOptimizer : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Optimizer, EveryOptimizer, testing::ValuesIn(OptimizerNames()));

TEST_P(EveryOptimizer, AnotherBufferReceivesWhatInPlaceYields) {
  const StageLayout layout(Shape(), {0, 2});
  OptimizerOptions options;
  options.name = GetParam();
  const std::vector<float> in_place = Trained(options, layout);
  const auto optimizer = MakeOptimizer(options, layout);
  std::vector<float> versions[2] = {Initial(layout), std::vector<float>(in_place.size())};
  for (int n = 1; n <= kUpdates; ++n) {
    const auto before = versions[(n - 1) % 2];
    optimizer->Step(Gradients(layout, n).data(), versions[(n - 1) % 2].data(),
                    versions[n % 2].data(), kRate, n);
    EXPECT_EQ(versions[(n - 1) % 2], before);
  }
  EXPECT_EQ(versions[kUpdates % 2], in_place);
}

TEST_P(EveryOptimizer, DoesNotDependOnThePartition) {
  OptimizerOptions options;
  options.name = GetParam();
  const StageLayout whole(Shape(), {0, 2});
  const std::vector<float> expected = Trained(options, whole);
  for (const LayerRange& range : SplitLayers(2, 2)) {
    const StageLayout part(Shape(), range);
    // Initial weights and gradients are functions of the global index.
    const std::vector<float> actual = Trained(options, part);
    for (const StageTensor& tensor : part.tensors()) {
      const int64_t offset = whole.Find(tensor.name).offset;
      for (int64_t i = 0; i < tensor.elements(); ++i) {
        ASSERT_EQ(actual[static_cast<size_t>(tensor.offset + i)],
                  expected[static_cast<size_t>(offset + i)])
            << tensor.name;
      }
    }
  }
}

TEST(Optimizer, UnknownNamesAreAnsweredWithTheNearest) {
  const StageLayout layout(Shape(), {0, 2});
  const auto message = [&](const char* name) {
    OptimizerOptions options;
    options.name = name;
    try {
      MakeOptimizer(options, layout);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(message("adam"), "there is no optimizer \"adam\"; did you mean \"adamw\"?");
  EXPECT_EQ(message("moun"), "there is no optimizer \"moun\"; did you mean \"muon\"?");
  EXPECT_THAT(OptimizerNames(), testing::ElementsAre("adamw", "nadam", "adan", "lion", "mars",
                                                     "soap", "muon", "normuon", "sgd", "sgd-ema"));
}

}  // namespace
}  // namespace pipelag
