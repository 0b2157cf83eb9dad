// Cases of the kernels that meet the vocabulary: embedding.h and cross_entropy.h.
#pragma once

#include <algorithm>
#include <cmath>

#include "models/random.h"
#include "runtime/cuda/kernels/cross_entropy.h"
#include "runtime/cuda/kernels/embedding.h"
#include "runtime/network/kernels.h"
#include "tests/runtime/cuda/kernel_case.h"
#include "tests/runtime/cuda/tolerance.h"

namespace pipelag::cuda {

struct EmbedSize {
  int64_t batch = 0;
  int64_t sequence = 0;
  int64_t cols = 0;
  int64_t vocabulary = 0;
  bool positions = true;
};

/// Half of them among the first few of the vocabulary, as in a text.
inline std::vector<Token> SomeTokens(int64_t count, int64_t vocabulary) {
  std::vector<Token> tokens;
  for (uint64_t i = 0; i < static_cast<uint64_t>(count); ++i) {
    const bool frequent = RandomBits(1, i) % 2 == 0;
    const auto among =
        static_cast<uint64_t>(frequent ? std::min<int64_t>(3, vocabulary) : vocabulary);
    tokens.push_back(static_cast<Token>(UniformBelow(RandomBits(2, i), among)));
  }
  return tokens;
}

template <class T>
KernelCase EmbedForwardCase(KernelMemory& memory, bool compared, const EmbedSize& size) {
  KernelCase c(memory, compared);
  const int64_t rows = size.batch * size.sequence;
  const std::vector<Token> tokens = SomeTokens(rows, size.vocabulary);
  const std::vector<float> tokens_table = Normal(size.vocabulary * size.cols, 3);
  const std::vector<float> positions_table = Normal(size.sequence * size.cols, 4);
  std::vector<float> expected(Size(rows * size.cols));
  if (compared) {
    pipelag::EmbedForward(tokens.data(), size.batch, size.sequence, size.cols, tokens_table.data(),
                          size.positions ? positions_table.data() : nullptr, expected.data());
  }
  const Token* of = c.Copied(tokens);
  const float* table = c.Input<float>(tokens_table);
  const float* positions = size.positions ? c.Input<float>(positions_table) : nullptr;
  T* x = c.Result<T>("x", rows * size.cols, c.Wide(expected), kTolerance<T>);
  c.moved_bytes = static_cast<double>(rows * size.cols) * ((size.positions ? 8 : 4) + sizeof(T));
  c.launch = [=] {
    EmbedForward(nullptr, of, size.batch, size.sequence, size.cols, table, positions, x);
  };
  return c;
}

template <class T>
KernelCase EmbedBackwardCase(KernelMemory& memory, bool compared, const EmbedSize& size) {
  KernelCase c(memory, compared);
  const int64_t rows = size.batch * size.sequence;
  const std::vector<Token> tokens = SomeTokens(rows, size.vocabulary);
  const std::vector<float> x_gradient = Rounded<T>(Normal(rows * size.cols, 3));
  const std::vector<float> before = Normal(size.vocabulary * size.cols, 4);
  const std::vector<float> positions_before = Normal(size.sequence * size.cols, 5);
  std::vector<float> expected = before;
  std::vector<float> positions_expected = positions_before;
  if (compared) {
    pipelag::EmbedBackward(tokens.data(), size.batch, size.sequence, size.cols, x_gradient.data(),
                           expected.data(), size.positions ? positions_expected.data() : nullptr);
  }
  const Token* of = c.Copied(tokens);
  const T* dx = c.Input<T>(x_gradient);
  void* scratch = c.Scratch(EmbedScratchBytes(rows));
  // The order of the CPU: not a bit may differ.
  float* gradient = c.Changed<float>("token gradient", before, c.Wide(expected), 0);
  float* positions = nullptr;
  if (size.positions) {
    positions =
        c.Changed<float>("position gradient", positions_before, c.Wide(positions_expected), 0);
  }
  std::vector<Token> different = tokens;
  std::sort(different.begin(), different.end());
  const auto owners =
      static_cast<double>(std::unique(different.begin(), different.end()) - different.begin());
  c.moved_bytes = static_cast<double>(size.cols) *
                  (static_cast<double>(rows) * (size.positions ? 2 : 1) * sizeof(T) +
                   8 * (owners + (size.positions ? static_cast<double>(size.sequence) : 0)));
  c.launch = [=] {
    EmbedBackward(nullptr, of, size.batch, size.sequence, size.cols, dx, scratch, gradient,
                  positions);
  };
  return c;
}

struct LogitsSize {
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;

  std::vector<Token> Targets() const { return SomeTokens(rows, cols); }
};

/// ln Σ e^row in double.
inline double LogSum(int64_t cols, const float* row) {
  const double largest = *std::max_element(row, row + cols);
  double sum = 0;
  for (int64_t j = 0; j < cols; ++j) sum += std::exp(static_cast<double>(row[j]) - largest);
  return largest + std::log(sum);
}

template <class T>
KernelCase CrossEntropyForwardCase(KernelMemory& memory, bool compared, const LogitsSize& size) {
  KernelCase c(memory, compared);
  const std::vector<Token> targets = size.Targets();
  const std::vector<float> values = Rounded<T>(Normal(size.rows * size.stride, 3, 4));
  std::vector<double> log_sums;
  double expected = 0;
  for (int64_t i = 0; compared && i < size.rows; ++i) {
    const float* row = values.data() + i * size.stride;
    log_sums.push_back(LogSum(size.cols, row));
    std::vector<float> probabilities(row, row + size.cols);
    expected +=
        pipelag::CrossEntropyForward(1, size.cols, targets.data() + i, probabilities.data());
  }
  const Token* of = c.Copied(targets);
  const T* logits = c.Input<T>(values);
  auto* row_losses = static_cast<double*>(c.Scratch(Size(size.rows) * sizeof(double)));
  float* sums = c.Result<float>("log sums", size.rows, log_sums, kExact);
  double* loss = c.Result<double>("loss", 1, {expected}, kExact);
  c.moved_bytes = static_cast<double>(size.rows * size.cols) * sizeof(T);
  c.launch = [=] {
    CrossEntropyForward(nullptr, size.rows, size.cols, size.stride, of, logits, sums, row_losses,
                        loss);
  };
  return c;
}

template <class T>
KernelCase CrossEntropyBackwardCase(KernelMemory& memory, bool compared, const LogitsSize& size) {
  KernelCase c(memory, compared);
  const std::vector<Token> targets = size.Targets();
  const std::vector<float> values = Rounded<T>(Normal(size.rows * size.stride, 3, 4));
  std::vector<float> log_sums(Size(size.rows), 10);
  std::vector<float> expected(values.size());
  const float scale = 1 / static_cast<float>(size.rows);
  for (int64_t i = 0; compared && i < size.rows; ++i) {
    const float* row = values.data() + i * size.stride;
    log_sums[Size(i)] = static_cast<float>(LogSum(size.cols, row));
    std::vector<float> probabilities(row, row + size.cols);
    pipelag::CrossEntropyForward(1, size.cols, targets.data() + i, probabilities.data());
    pipelag::CrossEntropyBackward(1, size.cols, probabilities.data(), targets.data() + i, scale,
                                  expected.data() + i * size.stride);
  }
  const Token* of = c.Copied(targets);
  const float* sums = c.Input<float>(log_sums);
  T* gradient = c.Changed<T>("logit gradient", values, c.Wide(expected), kTolerance<T>);
  c.moved_bytes = static_cast<double>(size.rows * size.cols) * 2 * sizeof(T);
  c.launch = [=] {
    CrossEntropyBackward(nullptr, size.rows, size.cols, size.stride, of, gradient, sums, scale,
                         gradient);
  };
  return c;
}

}  // namespace pipelag::cuda
