// Kernels that do in one pass what others do in several, and to the same bits: a network may take
// either way in its forward, its recomputation and its halves of a backward.
#pragma once

#include "runtime/cuda/kernels/elementwise.h"
#include "runtime/cuda/kernels/norm.h"
#include "tests/runtime/cuda/elementwise_cases.h"
#include "tests/runtime/cuda/kernel_case.h"
#include "tests/runtime/cuda/norm_cases.h"

namespace pipelag::cuda {

template <class T>
KernelCase FusedNormCase(KernelMemory& memory, bool compared, const NormSize& size) {
  KernelCase c(memory, compared);
  const NormInputs<T> in(size);
  const std::vector<float> residual = Rounded<T>(Normal(size.rows * size.cols, 5));
  const T* x = c.Input<T>(in.x);
  T* sum = c.Input<T>(in.x);
  const float* bias = c.Input<float>(Normal(size.cols, 4));
  const T* beside = c.Input<T>(residual);
  const float* gain = c.Input<float>(in.gain);
  const float* shift = size.optional ? c.Input<float>(in.shift) : nullptr;
  struct Kept {
    T* sum;
    float* mean;
    float* deviation;
    T* y;
  };
  const auto kept = [&](T* of) {
    return Kept{of, c.Input<float>(in.mean), c.Input<float>(in.deviation), c.Input<T>(in.y)};
  };
  const Kept one = kept(c.Input<T>(in.y));
  const Kept two = kept(sum);
  c.Same("sum", one.sum, two.sum);
  c.Same("mean", one.mean, two.mean);
  c.Same("deviation", one.deviation, two.deviation);
  c.Same("y", one.y, two.y);
  c.launch = [=] {
    AddNormForward(nullptr, size.kind, size.rows, size.cols, x, bias, beside, gain, shift, one.sum,
                   one.mean, one.deviation, one.y);
    cuda::AddBiasAndResidual(nullptr, size.rows, size.cols, bias, beside, two.sum);
    NormForward(nullptr, size.kind, size.rows, size.cols, static_cast<const T*>(two.sum), gain,
                shift, two.mean, two.deviation, two.y);
  };
  return c;
}

template <class T>
KernelCase FusedGeluCase(KernelMemory& memory, bool compared, const MatrixSize& size) {
  KernelCase c(memory, compared);
  const std::vector<float> x = Rounded<T>(Normal(size.elements(), 1, 3));
  const float* bias = c.Input<float>(Normal(size.cols, 2));
  struct Kept {
    T* x;
    T* y;
    T* gradient;
    float* bias_gradient;
  };
  const auto kept = [&] {
    return Kept{c.Input<T>(x), c.Input<T>(x), c.Input<T>(Normal(size.elements(), 3)),
                c.Input<float>(Normal(size.cols, 4))};
  };
  const Kept one = kept();
  const Kept two = kept();
  float* scratch = ColumnScratch(c, size);
  c.Same("x", one.x, two.x);
  c.Same("y", one.y, two.y);
  c.Same("gradient", one.gradient, two.gradient);
  c.Same("bias gradient", one.bias_gradient, two.bias_gradient);
  c.launch = [=] {
    BiasGeluForward(nullptr, size.rows, size.cols, bias, one.x, one.y);
    BiasGeluBackward(nullptr, size.rows, size.cols, static_cast<const T*>(one.x), one.gradient,
                     scratch, one.bias_gradient);
    cuda::AddBias(nullptr, size.rows, size.cols, size.cols, bias, two.x);
    BiasGeluForward<T>(nullptr, size.rows, size.cols, nullptr, two.x, two.y);
    cuda::GeluBackward(nullptr, size.rows, size.cols, static_cast<const T*>(two.x), two.gradient);
    cuda::AddColumnSums(nullptr, size.rows, size.cols, size.cols,
                        static_cast<const T*>(two.gradient), scratch, two.bias_gradient);
  };
  return c;
}

}  // namespace pipelag::cuda
