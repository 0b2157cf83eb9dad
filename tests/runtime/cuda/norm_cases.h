// Cases of norm.h's kernels.
#pragma once

#include "models/network.h"
#include "runtime/cuda/kernels/norm.h"
#include "runtime/network/kernels.h"
#include "runtime/network/norm.h"
#include "tests/runtime/cuda/kernel_case.h"
#include "tests/runtime/cuda/tolerance.h"

namespace pipelag::cuda {

struct NormSize {
  NormChoice kind = NormChoice::kLayer;
  int64_t rows = 0;
  int64_t cols = 0;
  bool optional = true;  ///< shift, bias or residual gradient, whichever may be missing

  Norm<float> OnCpu() const { return {kind, rows, cols}; }
};

/// A norm's inputs, and what its forward keeps.
template <class T>
struct NormInputs {
  explicit NormInputs(const NormSize& size)
      : x(Rounded<T>(Normal(size.rows * size.cols, 1, 3))),
        gain(Normal(size.cols, 2)),
        shift(Normal(size.cols, 3)),
        mean(Size(size.rows)),
        deviation(Size(size.rows)),
        y(x.size()) {}

  void Forward(const NormSize& size) {
    size.OnCpu().Forward(x.data(), gain.data(), size.optional ? shift.data() : nullptr, mean.data(),
                         deviation.data(), y.data());
  }

  std::vector<float> x, gain, shift, mean, deviation, y;
};

template <class T>
KernelCase NormForwardCase(KernelMemory& memory, bool compared, const NormSize& size) {
  KernelCase c(memory, compared);
  NormInputs<T> in(size);
  if (compared) in.Forward(size);
  const T* x = c.Input<T>(in.x);
  const float* gain = c.Input<float>(in.gain);
  const float* shift = size.optional ? c.Input<float>(in.shift) : nullptr;
  float* mean = nullptr;
  if (size.kind == NormChoice::kLayer) {
    mean = c.Result<float>("mean", size.rows, c.Wide(in.mean), kExact);
  }
  float* deviation = c.Result<float>("deviation", size.rows, c.Wide(in.deviation), kExact);
  T* y = c.Result<T>("y", size.rows * size.cols, c.Wide(in.y), kTolerance<T>);
  c.moved_bytes = static_cast<double>(size.rows * size.cols) * 2 * sizeof(T);
  c.launch = [=] {
    NormForward(nullptr, size.kind, size.rows, size.cols, x, gain, shift, mean, deviation, y);
  };
  return c;
}

template <class T>
KernelCase NormBackwardInputCase(KernelMemory& memory, bool compared, const NormSize& size) {
  KernelCase c(memory, compared);
  NormInputs<T> in(size);
  in.Forward(size);
  const std::vector<float> y_gradient = Rounded<T>(Normal(size.rows * size.cols, 6));
  const std::vector<float> residual = Rounded<T>(Normal(size.rows * size.cols, 7));
  std::vector<float> expected = size.optional ? residual : std::vector<float>(in.x.size());
  if (compared) {
    size.OnCpu().BackwardInput(y_gradient.data(), in.x.data(), in.gain.data(), in.mean.data(),
                               in.deviation.data(), expected.data());
  }
  const T* dy = c.Input<T>(y_gradient);
  const T* x = c.Input<T>(in.x);
  const float* gain = c.Input<float>(in.gain);
  const float* mean = size.kind == NormChoice::kLayer ? c.Input<float>(in.mean) : nullptr;
  const float* deviation = c.Input<float>(in.deviation);
  // In place where there is something to add to.
  T* dx = size.optional
              ? c.Changed<T>("x gradient", residual, c.Wide(expected), kTolerance<T>)
              : c.Result<T>("x gradient", size.rows * size.cols, c.Wide(expected), kTolerance<T>);
  c.moved_bytes = static_cast<double>(size.rows * size.cols) * (size.optional ? 4 : 3) * sizeof(T);
  c.launch = [=] {
    NormBackwardInput(nullptr, size.kind, size.rows, size.cols, dy, x, gain, mean, deviation,
                      size.optional ? dx : nullptr, dx);
  };
  return c;
}

template <class T>
KernelCase NormBackwardWeightCase(KernelMemory& memory, bool compared, const NormSize& size) {
  KernelCase c(memory, compared);
  NormInputs<T> in(size);
  in.Forward(size);
  const std::vector<float> y_gradient = Rounded<T>(Normal(size.rows * size.cols, 6));
  const bool shifted = size.kind == NormChoice::kLayer && size.optional;
  const std::vector<float> before = Normal(size.cols, 8);
  std::vector<float> gain = before;
  std::vector<float> shift = before;
  if (compared) {
    size.OnCpu().BackwardWeight(y_gradient.data(), in.x.data(), in.mean.data(), in.deviation.data(),
                                gain.data(), shifted ? shift.data() : nullptr);
  }
  const T* dy = c.Input<T>(y_gradient);
  const T* x = c.Input<T>(in.x);
  const float* mean = size.kind == NormChoice::kLayer ? c.Input<float>(in.mean) : nullptr;
  const float* deviation = c.Input<float>(in.deviation);
  auto* scratch =
      static_cast<float*>(c.Scratch(Size(NormScratch(size.rows, size.cols)) * sizeof(float)));
  float* gain_gradient = c.Changed<float>("gain gradient", before, c.Wide(gain), kExact);
  float* shift_gradient = nullptr;
  if (shifted) {
    shift_gradient = c.Changed<float>("shift gradient", before, c.Wide(shift), kExact);
  }
  c.moved_bytes = static_cast<double>(size.rows * size.cols) * 2 * sizeof(T);
  c.launch = [=] {
    NormBackwardWeight(nullptr, size.kind, size.rows, size.cols, dy, x, mean, deviation, scratch,
                       gain_gradient, shift_gradient);
  };
  return c;
}

}  // namespace pipelag::cuda
