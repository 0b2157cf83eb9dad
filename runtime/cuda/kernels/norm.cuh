// Kernels of norm.h: a warp works on a row, whose first pass brings it into the cache for the
// others. Knows neither how many rows a block has nor who launches it.
#pragma once

#include "runtime/cuda/kernels/columns.cuh"
#include "runtime/cuda/kernels/warp.cuh"

namespace pipelag::cuda {

constexpr float kNormEpsilon = 1e-5f;
constexpr int kNormWarps = 4;

/// The row of this warp; its lanes share the packs of the row in turn.
__device__ __forceinline__ int64_t NormRow() {
  return static_cast<int64_t>(blockIdx.x) * kNormWarps + threadIdx.x / kWarp;
}

/// Calls body(j) for the packs of this lane.
template <int kWidth, class Body>
__device__ __forceinline__ void ForOwnPacks(int64_t cols, Body body) {
  PIPELAG_UNROLL_BY_4
  for (int64_t j = threadIdx.x % kWarp * kWidth; j < cols; j += kWarp * kWidth) body(j);
}

template <class T, int kWidth, bool kRms>
__global__ void __launch_bounds__(kNormWarps* kWarp, 8)
    NormForwardKernel(int64_t rows, int64_t cols, const T* x, const float* gain, const float* shift,
                      float* mean, float* inverse_deviation, T* y) {
  const int64_t row = NormRow();
  if (row >= rows) return;
  const T* in = x + row * cols;
  float sum = 0;
  float squares = 0;
  ForOwnPacks<kWidth>(cols, [&](int64_t j) {
    float v[kWidth];
    Load(in + j, v);
    PIPELAG_UNROLL
    for (int k = 0; k < kWidth; ++k) {
      sum += v[k];
      squares = fmaf(v[k], v[k], squares);
    }
  });
  const float count = static_cast<float>(cols);
  float m = 0;
  if constexpr (!kRms) {
    m = WarpSum(sum) / count;
    squares = 0;
    ForOwnPacks<kWidth>(cols, [&](int64_t j) {
      float v[kWidth];
      Load(in + j, v);
      PIPELAG_UNROLL
      for (int k = 0; k < kWidth; ++k) squares = fmaf(v[k] - m, v[k] - m, squares);
    });
  }
  const float r = 1 / sqrtf(WarpSum(squares) / count + kNormEpsilon);
  ForOwnPacks<kWidth>(cols, [&](int64_t j) {
    float v[kWidth];
    float g[kWidth];
    Load(in + j, v);
    Load(gain + j, g);
    if (!kRms && shift != nullptr) {
      float s[kWidth];
      Load(shift + j, s);
      PIPELAG_UNROLL
      for (int k = 0; k < kWidth; ++k) v[k] = fmaf((v[k] - m) * r, g[k], s[k]);
    } else {
      PIPELAG_UNROLL
      for (int k = 0; k < kWidth; ++k) v[k] = (v[k] - m) * r * g[k];
    }
    Store(v, y + row * cols + j);
  });
  if (threadIdx.x % kWarp == 0) {
    if constexpr (!kRms) mean[row] = m;
    inverse_deviation[row] = r;
  }
}

template <class T, int kWidth, bool kRms>
__global__ void __launch_bounds__(kNormWarps* kWarp, 8)
    NormBackwardInputKernel(int64_t rows, int64_t cols, const T* y_gradient, const T* x,
                            const float* gain, const float* mean, const float* inverse_deviation,
                            const T* residual_gradient, T* x_gradient) {
  const int64_t row = NormRow();
  if (row >= rows) return;
  const T* in = x + row * cols;
  const T* dy = y_gradient + row * cols;
  float m = 0;
  if constexpr (!kRms) m = mean[row];
  const float r = inverse_deviation[row];
  float sum = 0;
  float projection = 0;
  ForOwnPacks<kWidth>(cols, [&](int64_t j) {
    float v[kWidth];
    float d[kWidth];
    float g[kWidth];
    Load(in + j, v);
    Load(dy + j, d);
    Load(gain + j, g);
    PIPELAG_UNROLL
    for (int k = 0; k < kWidth; ++k) {
      const float through = d[k] * g[k];
      sum += through;
      projection += through * ((v[k] - m) * r);
    }
  });
  const float count = static_cast<float>(cols);
  float mean_gradient = 0;
  if constexpr (!kRms) mean_gradient = WarpSum(sum) / count;
  const float mean_projection = WarpSum(projection) / count;
  ForOwnPacks<kWidth>(cols, [&](int64_t j) {
    float v[kWidth];
    float d[kWidth];
    float g[kWidth];
    Load(in + j, v);
    Load(dy + j, d);
    Load(gain + j, g);
    PIPELAG_UNROLL
    for (int k = 0; k < kWidth; ++k) {
      v[k] = r * ((d[k] * g[k] - mean_gradient) - (v[k] - m) * r * mean_projection);
    }
    if (residual_gradient != nullptr) {
      Load(residual_gradient + row * cols + j, d);
      PIPELAG_UNROLL
      for (int k = 0; k < kWidth; ++k) v[k] += d[k];
    }
    Store(v, x_gradient + row * cols + j);
  });
}

/// The summands of the gradients of gain and, where kShift, of shift.
template <class T, bool kRms, bool kShift>
struct NormWeightTerms {
  static constexpr int kSums = kShift ? 2 : 1;
  int64_t cols;
  const T* y_gradient;
  const T* x;
  const float* mean;
  const float* inverse_deviation;

  template <int kWidth>
  __device__ __forceinline__ void AddTo(int64_t row, int64_t j,
                                        float (&sums)[kSums][kWidth]) const {
    float v[kWidth];
    float d[kWidth];
    Load(x + row * cols + j, v);
    Load(y_gradient + row * cols + j, d);
    float m = 0;
    if constexpr (!kRms) m = mean[row];
    const float r = inverse_deviation[row];
    PIPELAG_UNROLL
    for (int k = 0; k < kWidth; ++k) {
      sums[0][k] += d[k] * ((v[k] - m) * r);
      if constexpr (kShift) sums[kSums - 1][k] += d[k];
    }
  }
};

}  // namespace pipelag::cuda
