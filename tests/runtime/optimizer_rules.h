// Optimizers played in double, one tensor at a time, beside the real ones.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <vector>

#include "models/random.h"
#include "runtime/correction/correction.h"
#include "runtime/network/gemm.h"
#include "runtime/optimizer/optimizer.h"

namespace pipelag {

inline constexpr float kRate = 0.01f;
inline constexpr int kUpdates = 5;

inline NetworkShape Shape() {
  return {.layers = 2, .hidden = 8, .heads = 2, .sequence = 5, .vocabulary = 13};
}

/// The gradient of one element at one update: the same numbers for every optimizer.
inline float Gradient(const StageTensor& tensor, int64_t element, int update) {
  return static_cast<float>(
      0.1 *
      StandardNormal(RandomBits(42, static_cast<uint64_t>(tensor.global_index),
                                static_cast<uint64_t>(element), static_cast<uint64_t>(update))));
}

inline std::vector<float> Gradients(const StageLayout& layout, int update) {
  std::vector<float> gradients(static_cast<size_t>(layout.size()));
  for (const StageTensor& tensor : layout.tensors()) {
    for (int64_t i = 0; i < tensor.elements(); ++i) {
      gradients[static_cast<size_t>(tensor.offset + i)] = Gradient(tensor, i, update);
    }
  }
  return gradients;
}

inline std::vector<float> Initial(const StageLayout& layout) {
  std::vector<float> weights(static_cast<size_t>(layout.size()));
  InitialiseWeights(layout, Shape(), 1, weights.data());
  return weights;
}

/// Weights after kUpdates steps in place, without delay.
inline std::vector<float> Trained(const OptimizerOptions& options, const StageLayout& layout,
                                  const CorrectionOptions& correction = {}) {
  PrepareThread();
  const auto optimizer = MakeCorrected(options, correction, layout, {});
  std::vector<float> weights = Initial(layout);
  for (int n = 1; n <= kUpdates; ++n) {
    const auto gradients = Gradients(layout, n);
    optimizer->Step(gradients.data(), weights.data(), weights.data(), kRate, n);
  }
  return weights;
}

using Tensor = std::vector<double>;
/// Changes one tensor's weights by one update with gradient g.
using Rule = std::function<void(const StageTensor&, int n, const Tensor& g, Tensor& x)>;

/// Plays `make` (one rule, with its state, per tensor) in double and compares.
inline void ExpectFollows(const OptimizerOptions& options, const std::function<Rule()>& make,
                          const std::function<bool(const StageTensor&)>& chosen, double tolerance,
                          const CorrectionOptions& correction = {}) {
  const StageLayout layout(Shape(), {0, 2});
  const std::vector<float> actual = Trained(options, layout, correction);
  const std::vector<float> initial = Initial(layout);
  int compared = 0;
  for (const StageTensor& tensor : layout.tensors()) {
    if (!chosen(tensor)) continue;
    const auto begin = initial.begin() + tensor.offset;
    Tensor x(begin, begin + tensor.elements());
    const Rule rule = make();
    for (int n = 1; n <= kUpdates; ++n) {
      Tensor g;
      for (int64_t i = 0; i < tensor.elements(); ++i) g.push_back(Gradient(tensor, i, n));
      rule(tensor, n, g, x);
    }
    double largest = 0;
    for (const double value : x) largest = std::max(largest, std::fabs(value));
    for (size_t i = 0; i < x.size(); ++i, ++compared) {
      ASSERT_NEAR(actual[static_cast<size_t>(tensor.offset) + i], x[i], tolerance * largest)
          << options.name << " " << tensor.name << "[" << i << "]";
    }
  }
  EXPECT_GT(compared, 0);
}

inline bool Every(const StageTensor&) { return true; }

inline Rule AdamWRule(double beta1, double beta2, double epsilon, double decay) {
  auto m = std::make_shared<Tensor>();
  auto v = std::make_shared<Tensor>();
  return [=](const StageTensor& tensor, int n, const Tensor& g, Tensor& x) {
    m->resize(x.size());
    v->resize(x.size());
    const double wd = tensor.role == TensorRole::kVector ? 0 : decay;
    for (size_t i = 0; i < x.size(); ++i) {
      (*m)[i] = beta1 * (*m)[i] + (1 - beta1) * g[i];
      (*v)[i] = beta2 * (*v)[i] + (1 - beta2) * g[i] * g[i];
      const double m_hat = (*m)[i] / (1 - std::pow(beta1, n));
      const double v_hat = (*v)[i] / (1 - std::pow(beta2, n));
      x[i] = x[i] * (1 - static_cast<double>(kRate) * wd) -
             static_cast<double>(kRate) * m_hat / (std::sqrt(v_hat) + epsilon);
    }
  };
}

inline Tensor Product(const Tensor& a, const Tensor& b, size_t m, size_t k, size_t n) {
  Tensor c(m * n);
  for (size_t i = 0; i < m; ++i) {
    for (size_t l = 0; l < k; ++l) {
      for (size_t j = 0; j < n; ++j) c[i * n + j] += a[i * k + l] * b[l * n + j];
    }
  }
  return c;
}

inline Tensor Flip(const Tensor& a, size_t rows, size_t cols) {
  Tensor t(a.size());
  for (size_t i = 0; i < rows; ++i) {
    for (size_t j = 0; j < cols; ++j) t[j * rows + i] = a[i * cols + j];
  }
  return t;
}

/// Without transposing: the polynomial acts from the left on the larger side, which is the same
/// map.
inline Tensor NewtonSchulz(Tensor x, size_t rows, size_t cols) {
  double norm = 0;
  for (const double value : x) norm += value * value;
  for (double& value : x) value /= std::sqrt(norm) + 1e-7;
  for (int step = 0; step < 5; ++step) {
    const Tensor a = Product(x, Flip(x, rows, cols), rows, cols, rows);
    const Tensor ax = Product(a, x, rows, rows, cols);
    const Tensor aax = Product(a, ax, rows, rows, cols);
    for (size_t i = 0; i < x.size(); ++i) x[i] = 3.4445 * x[i] - 4.7750 * ax[i] + 2.0315 * aax[i];
  }
  return x;
}

}  // namespace pipelag
