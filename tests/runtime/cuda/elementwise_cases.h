// Cases of elementwise.h's kernels.
#pragma once

#include <cmath>

#include "runtime/cuda/kernels/elementwise.h"
#include "runtime/network/kernels.h"
#include "tests/runtime/cuda/kernel_case.h"
#include "tests/runtime/cuda/tolerance.h"

namespace pipelag::cuda {

struct MatrixSize {
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;  ///< between rows, where a kernel takes one
  bool bias = true;

  int64_t elements() const { return rows * cols; }
};

template <class T>
KernelCase AddBiasCase(KernelMemory& memory, bool compared, const MatrixSize& size) {
  KernelCase c(memory, compared);
  const std::vector<float> before = Rounded<T>(Normal(size.rows * size.stride, 1));
  const std::vector<float> bias = Normal(size.cols, 2);
  std::vector<float> expected = before;
  for (int64_t i = 0; compared && i < size.rows; ++i) {
    pipelag::AddBias(1, size.cols, bias.data(), expected.data() + i * size.stride);
  }
  const float* added = c.Input<float>(bias);
  T* x = c.Changed<T>("x", before, c.Wide(expected), kTolerance<T>);
  c.moved_bytes = static_cast<double>(size.elements()) * 2 * sizeof(T);
  c.launch = [=] { AddBias(nullptr, size.rows, size.cols, size.stride, added, x); };
  return c;
}

template <class T>
KernelCase AddBiasAndResidualCase(KernelMemory& memory, bool compared, const MatrixSize& size) {
  KernelCase c(memory, compared);
  const std::vector<float> before = Rounded<T>(Normal(size.elements(), 1));
  const std::vector<float> bias = Normal(size.cols, 2);
  const std::vector<float> residual = Rounded<T>(Normal(size.elements(), 3));
  std::vector<float> expected = before;
  if (compared) {
    pipelag::AddBiasAndResidual(size.rows, size.cols, size.bias ? bias.data() : nullptr,
                                residual.data(), expected.data());
  }
  const float* added = size.bias ? c.Input<float>(bias) : nullptr;
  const T* beside = c.Input<T>(residual);
  T* x = c.Changed<T>("x", before, c.Wide(expected), kTolerance<T>);
  c.moved_bytes = static_cast<double>(size.elements()) * 3 * sizeof(T);
  c.launch = [=] { AddBiasAndResidual(nullptr, size.rows, size.cols, added, beside, x); };
  return c;
}

inline float* ColumnScratch(KernelCase& c, const MatrixSize& size) {
  const int64_t floats = ColumnSumsScratch(size.rows, size.cols);
  return static_cast<float*>(c.Scratch(Size(floats) * sizeof(float)));
}

template <class T>
KernelCase ColumnSumsCase(KernelMemory& memory, bool compared, const MatrixSize& size) {
  KernelCase c(memory, compared);
  const std::vector<float> values = Rounded<T>(Normal(size.rows * size.stride, 1));
  const std::vector<float> before = Normal(size.cols, 2);
  std::vector<float> expected = before;
  for (int64_t i = 0; compared && i < size.rows; ++i) {
    pipelag::AddColumnSums(1, size.cols, values.data() + i * size.stride, expected.data());
  }
  const T* x = c.Input<T>(values);
  float* scratch = ColumnScratch(c, size);
  float* sums = c.Changed<float>("sums", before, c.Wide(expected), kExact);
  c.moved_bytes = static_cast<double>(size.elements()) * sizeof(T);
  c.launch = [=] { AddColumnSums(nullptr, size.rows, size.cols, size.stride, x, scratch, sums); };
  return c;
}

template <class T>
KernelCase GeluForwardCase(KernelMemory& memory, bool compared, const MatrixSize& size) {
  KernelCase c(memory, compared);
  const std::vector<float> before = Rounded<T>(Normal(size.elements(), 1, 3));
  const std::vector<float> bias = Normal(size.cols, 2);
  std::vector<float> biased = before;
  std::vector<float> expected(before.size());
  if (compared) {
    if (size.bias) pipelag::AddBias(size.rows, size.cols, bias.data(), biased.data());
    biased = Rounded<T>(biased);
    pipelag::GeluForward(size.rows, size.cols, biased.data(), expected.data());
  }
  const float* added = size.bias ? c.Input<float>(bias) : nullptr;
  T* x = c.Changed<T>("x", before, c.Wide(biased), kExact);
  T* y = c.Result<T>("y", size.elements(), c.Wide(expected), kTolerance<T>);
  c.moved_bytes = static_cast<double>(size.elements()) * (size.bias ? 3 : 2) * sizeof(T);
  c.launch = [=] { BiasGeluForward(nullptr, size.rows, size.cols, added, x, y); };
  return c;
}

/// A product that adds the bias itself, then GELU alone: what is computed again that way has the
/// bits of both in one pass.
template <class T>
KernelCase FusedGeluCase(KernelMemory& memory, bool compared, const MatrixSize& size) {
  KernelCase c(memory, compared);
  const std::vector<float> x = Rounded<T>(Normal(size.elements(), 1, 3));
  const float* bias = c.Input<float>(Normal(size.cols, 2));
  T* one_x = c.Input<T>(x);
  T* one_y = c.Input<T>(x);
  T* two_x = c.Input<T>(x);
  T* two_y = c.Input<T>(x);
  c.Same("x", one_x, two_x);
  c.Same("y", one_y, two_y);
  c.launch = [=] {
    BiasGeluForward(nullptr, size.rows, size.cols, bias, one_x, one_y);
    cuda::AddBias(nullptr, size.rows, size.cols, size.cols, bias, two_x);
    BiasGeluForward<T>(nullptr, size.rows, size.cols, nullptr, two_x, two_y);
  };
  return c;
}

template <class T>
KernelCase GeluBackwardCase(KernelMemory& memory, bool compared, const MatrixSize& size) {
  KernelCase c(memory, compared);
  const std::vector<float> values = Rounded<T>(Normal(size.elements(), 1, 3));
  const std::vector<float> before = Rounded<T>(Normal(size.elements(), 2));
  std::vector<float> expected = before;
  if (compared) {
    pipelag::GeluBackward(size.rows, size.cols, values.data(), expected.data());
  }
  const T* x = c.Input<T>(values);
  T* gradient = c.Changed<T>("gradient", before, c.Wide(expected), kTolerance<T>);
  c.moved_bytes = static_cast<double>(size.elements()) * 3 * sizeof(T);
  c.launch = [=] { cuda::GeluBackward(nullptr, size.rows, size.cols, x, gradient); };
  return c;
}

template <class T>
KernelCase SwiGluForwardCase(KernelMemory& memory, bool compared, const MatrixSize& size) {
  KernelCase c(memory, compared);
  const std::vector<float> values = Rounded<T>(Normal(2 * size.elements(), 1, 3));
  std::vector<float> expected(Size(size.elements()));
  if (compared) {
    pipelag::SwiGluForward(size.rows, size.cols, values.data(), expected.data());
  }
  const T* x = c.Input<T>(values);
  T* y = c.Result<T>("y", size.elements(), c.Wide(expected), kTolerance<T>);
  c.moved_bytes = static_cast<double>(size.elements()) * 3 * sizeof(T);
  c.launch = [=] { cuda::SwiGluForward(nullptr, size.rows, size.cols, x, y); };
  return c;
}

template <class T>
KernelCase SwiGluBackwardCase(KernelMemory& memory, bool compared, const MatrixSize& size) {
  KernelCase c(memory, compared);
  const std::vector<float> values = Rounded<T>(Normal(2 * size.elements(), 1, 3));
  const std::vector<float> y_gradient = Rounded<T>(Normal(size.elements(), 2));
  std::vector<float> expected(values.size());
  if (compared) {
    pipelag::SwiGluBackward(size.rows, size.cols, values.data(), y_gradient.data(),
                            expected.data());
  }
  const T* x = c.Input<T>(values);
  const T* dy = c.Input<T>(y_gradient);
  T* gradient = c.Result<T>("gradient", 2 * size.elements(), c.Wide(expected), kTolerance<T>);
  c.moved_bytes = static_cast<double>(size.elements()) * 5 * sizeof(T);
  c.launch = [=] { SwiGluBackward(nullptr, size.rows, size.cols, x, dy, gradient); };
  return c;
}

struct RotationSize {
  int64_t batch = 0;
  int64_t sequence = 0;
  int64_t heads = 0;
  int64_t head_size = 0;
  float direction = 1;
};

template <class T>
KernelCase RotateCase(KernelMemory& memory, bool compared, const RotationSize& size) {
  KernelCase c(memory, compared);
  const int64_t rows = size.batch * size.sequence;
  const int64_t half = size.head_size / 2;
  // Behind the heads that are turned lie as many numbers that are not.
  const int64_t stride = 2 * size.heads * size.head_size;
  std::vector<float> cosines, sines;
  for (int64_t t = 0; t < size.sequence; ++t) {
    for (int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(t) *
                           std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(half));
      cosines.push_back(static_cast<float>(std::cos(angle)));
      sines.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  const std::vector<float> before = Rounded<T>(Normal(rows * stride, 1));
  std::vector<double> expected = c.Wide(before);
  for (int64_t row = 0; compared && row < rows; ++row) {
    for (int64_t h = 0; h < size.heads; ++h) {
      for (int64_t i = 0; i < half; ++i) {
        const size_t angle = Size(row % size.sequence * half + i);
        double& x = expected[Size(row * stride + h * size.head_size + i)];
        double& y = expected[Size(row * stride + h * size.head_size + half + i)];
        const double cosine = cosines[angle];
        const double sine = static_cast<double>(size.direction) * static_cast<double>(sines[angle]);
        const double turned = x * cosine - y * sine;
        y = y * cosine + x * sine;
        x = turned;
      }
    }
  }
  const float* cosine = c.Input<float>(cosines);
  const float* sine = c.Input<float>(sines);
  T* qkv = c.Changed<T>("qkv", before, expected, kTolerance<T>);
  c.moved_bytes = static_cast<double>(rows * size.heads * size.head_size) * 2 * sizeof(T);
  c.launch = [=] {
    Rotate(nullptr, rows, size.sequence, size.heads, size.head_size, stride, size.direction, cosine,
           sine, qkv);
  };
  return c;
}

}  // namespace pipelag::cuda
