// Kernels of elementwise.h: a thread works on one pack. Where the compiler might fuse a product
// with a sum, fmaf says that it is, since GELU with a bias and without are to have the same bits.
// Knows neither where a matrix comes from nor who launches it.
#pragma once

#include "runtime/cuda/kernels/columns.cuh"
#include "runtime/cuda/kernels/warp.cuh"

namespace pipelag::cuda {

constexpr int kElementThreads = 128;

/// The pack of this thread, as row and column of a matrix that is `cols` packs wide. Packs are
/// counted in 32 bits (the launch checks), since a long division is slow.
struct PackPlace {
  int64_t row;
  int64_t col;  ///< in elements
  bool inside;
};
template <int kWidth>
__device__ __forceinline__ PackPlace OwnPack(int64_t rows, int64_t cols) {
  const uint32_t pack = blockIdx.x * static_cast<uint32_t>(kElementThreads) + threadIdx.x;
  const auto packs = static_cast<uint32_t>(cols / kWidth);
  const uint32_t row = pack / packs;
  return {row, static_cast<int64_t>(pack - row * packs) * kWidth, row < rows};
}

template <class T, int kWidth>
__global__ void AddBiasKernel(int64_t rows, int64_t cols, int64_t stride, const float* bias, T* x) {
  const PackPlace at = OwnPack<kWidth>(rows, cols);
  if (!at.inside) return;
  float v[kWidth];
  float b[kWidth];
  Load(x + at.row * stride + at.col, v);
  Load(bias + at.col, b);
  PIPELAG_UNROLL
  for (int k = 0; k < kWidth; ++k) v[k] += b[k];
  Store(v, x + at.row * stride + at.col);
}

template <class T, int kWidth>
__global__ void AddBiasAndResidualKernel(int64_t rows, int64_t cols, const float* bias,
                                         const T* residual, T* x) {
  const PackPlace at = OwnPack<kWidth>(rows, cols);
  if (!at.inside) return;
  const int64_t i = at.row * cols + at.col;
  float v[kWidth];
  float other[kWidth];
  Load(x + i, v);
  if (bias != nullptr) {
    Load(bias + at.col, other);
    PIPELAG_UNROLL
    for (int k = 0; k < kWidth; ++k) v[k] += other[k];
  }
  Load(residual + i, other);
  PIPELAG_UNROLL
  for (int k = 0; k < kWidth; ++k) v[k] += other[k];
  Store(v, x + i);
}

// 0.5 (1 + tanh u) = 1 / (1 + e^(−2u)): one exponential, and no cancellation on the negative side.
// −2u = x (kGeluLinear + kGeluCubic x²).
constexpr float kGeluLinear = -1.5957691216057308f;
constexpr float kGeluCubic = 0.044715f * kGeluLinear;
// Beyond it the sigmoid is 0 or 1 to the last bit, and e^−x times what it is divided by would
// overflow.
constexpr float kSteepest = 80;

template <class T>
__device__ __forceinline__ float Gelu(float x) {
  const float power = fminf(x * fmaf(kGeluCubic, x * x, kGeluLinear), kSteepest);
  return x / (1 + Exponential<T>(power));
}

template <class T>
__device__ __forceinline__ float GeluDerivative(float x) {
  const float square = x * x;
  const float power = fminf(x * fmaf(kGeluCubic, square, kGeluLinear), kSteepest);
  const float slope = fmaf(3 * kGeluCubic, square, kGeluLinear);
  const float e = Exponential<T>(power);
  const float s = 1 / (1 + e);
  return fmaf(-x * s * (e * s), slope, s);
}

template <class T, int kWidth, bool kBias>
__global__ void GeluForwardKernel(int64_t rows, int64_t cols, const float* bias, T* x, T* y) {
  const PackPlace at = OwnPack<kWidth>(rows, cols);
  if (!at.inside) return;
  const int64_t i = at.row * cols + at.col;
  float v[kWidth];
  Load(x + i, v);
  if constexpr (kBias) {
    float b[kWidth];
    Load(bias + at.col, b);
    PIPELAG_UNROLL
    for (int k = 0; k < kWidth; ++k) v[k] += b[k];
    Store(v, x + i);
    Round<T>(v);
  }
  PIPELAG_UNROLL
  for (int k = 0; k < kWidth; ++k) v[k] = Gelu<T>(v[k]);
  Store(v, y + i);
}

template <class T, int kWidth>
__global__ void GeluBackwardKernel(int64_t rows, int64_t cols, const T* x, T* y_gradient) {
  const PackPlace at = OwnPack<kWidth>(rows, cols);
  if (!at.inside) return;
  const int64_t i = at.row * cols + at.col;
  float v[kWidth];
  float g[kWidth];
  Load(x + i, v);
  Load(y_gradient + i, g);
  PIPELAG_UNROLL
  for (int k = 0; k < kWidth; ++k) g[k] *= GeluDerivative<T>(v[k]);
  Store(g, y_gradient + i);
}

/// Summands of a bias's gradient.
template <class T>
struct BiasTerms {
  static constexpr int kSums = 1;
  int64_t stride;
  const T* x;

  template <int kWidth>
  __device__ __forceinline__ void AddTo(int64_t row, int64_t j,
                                        float (&sums)[kSums][kWidth]) const {
    float v[kWidth];
    Load(x + row * stride + j, v);
    PIPELAG_UNROLL
    for (int k = 0; k < kWidth; ++k) sums[0][k] += v[k];
  }
};

template <class T, int kWidth>
__global__ void SwiGluForwardKernel(int64_t rows, int64_t cols, const T* gate_and_up, T* y) {
  const PackPlace at = OwnPack<kWidth>(rows, cols);
  if (!at.inside) return;
  const T* gate = gate_and_up + at.row * 2 * cols + at.col;
  float x[kWidth];
  float u[kWidth];
  Load(gate, x);
  Load(gate + cols, u);
  PIPELAG_UNROLL
  for (int k = 0; k < kWidth; ++k) {
    const float s = 1 / (1 + Exponential<T>(fminf(-x[k], kSteepest)));
    x[k] = x[k] * s * u[k];
  }
  Store(x, y + at.row * cols + at.col);
}

template <class T, int kWidth>
__global__ void SwiGluBackwardKernel(int64_t rows, int64_t cols, const T* gate_and_up,
                                     const T* y_gradient, T* gradient) {
  const PackPlace at = OwnPack<kWidth>(rows, cols);
  if (!at.inside) return;
  const int64_t i = at.row * 2 * cols + at.col;
  float x[kWidth];
  float u[kWidth];
  float d[kWidth];
  Load(gate_and_up + i, x);
  Load(gate_and_up + i + cols, u);
  Load(y_gradient + at.row * cols + at.col, d);
  PIPELAG_UNROLL
  for (int k = 0; k < kWidth; ++k) {
    const float e = Exponential<T>(fminf(-x[k], kSteepest));
    const float s = 1 / (1 + e);
    // 1 − s = e · s, without cancellation.
    const float slope = s + x[k] * s * (e * s);
    const float gate_gradient = d[k] * u[k] * slope;
    u[k] = d[k] * (x[k] * s);
    x[k] = gate_gradient;
  }
  Store(x, gradient + i);
  Store(u, gradient + i + cols);
}

/// A thread turns a pack of pairs; `cols` of OwnPack are heads · D/2.
template <class T, int kWidth>
__global__ void RotateKernel(int64_t rows, int64_t sequence, int64_t heads, int64_t half,
                             int64_t stride, float direction, const float* cosines,
                             const float* sines, T* qkv) {
  const PackPlace at = OwnPack<kWidth>(rows, heads * half);
  if (!at.inside) return;
  const auto head =
      static_cast<int64_t>(static_cast<uint32_t>(at.col) / static_cast<uint32_t>(half));
  const int64_t i = at.col - head * half;
  const int64_t angle = static_cast<uint32_t>(at.row) % static_cast<uint32_t>(sequence) * half + i;
  T* low = qkv + at.row * stride + head * 2 * half + i;
  T* high = low + half;
  float x[kWidth];
  float y[kWidth];
  float c[kWidth];
  float s[kWidth];
  Load(low, x);
  Load(high, y);
  Load(cosines + angle, c);
  Load(sines + angle, s);
  PIPELAG_UNROLL
  for (int k = 0; k < kWidth; ++k) {
    const float turned = x[k] * c[k] - y[k] * (direction * s[k]);
    y[k] = y[k] * c[k] + x[k] * (direction * s[k]);
    x[k] = turned;
  }
  Store(x, low);
  Store(y, high);
}

}  // namespace pipelag::cuda
