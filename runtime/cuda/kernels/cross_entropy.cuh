// Kernels of cross_entropy.h: a block works on a row of logits. A vocabulary such as GPT-2's 50257
// leaves rows that begin anywhere, so a row is read as single numbers up to the next pack, packs,
// and single numbers again.
#pragma once

#include "runtime/cuda/kernels/warp.cuh"
#include "runtime/data/token.h"

namespace pipelag::cuda {

constexpr int kRowWarps = 8;
constexpr int kRowThreads = kRowWarps * kWarp;

/// Calls body.operator()<width>(column) for what this thread has of a row that starts at `row`.
template <class T, class Body>
__device__ __forceinline__ void ForRow(const T* row, int64_t cols, Body body) {
  constexpr int kWidth = kPack<T>;
  const int thread = static_cast<int>(threadIdx.x);
  const auto past = static_cast<int64_t>(reinterpret_cast<uintptr_t>(row) % 16 / sizeof(T));
  int64_t head = (kWidth - past) % kWidth;
  if (head > cols) head = cols;
  const int64_t tail = head + (cols - head) / kWidth * kWidth;
  if (thread < head) body.template operator()<1>(static_cast<int64_t>(thread));
  PIPELAG_UNROLL_BY_4
  for (int64_t j = head + thread * kWidth; j < tail; j += kRowThreads * kWidth) {
    body.template operator()<kWidth>(j);
  }
  if (thread < cols - tail) body.template operator()<1>(tail + thread);
}

/// The largest of some numbers and Σ e^(x − largest).
struct SoftmaxSum {
  float largest;
  float sum;
};

/// Finite, so that no difference of two is undefined.
constexpr float kBelowAll = -3e38f;

template <class T>
__device__ __forceinline__ SoftmaxSum Join(SoftmaxSum a, SoftmaxSum b) {
  const float largest = fmaxf(a.largest, b.largest);
  return {largest, a.sum * Exponential<T>(a.largest - largest) +
                       b.sum * Exponential<T>(b.largest - largest)};
}

template <class T>
__global__ void __launch_bounds__(kRowThreads, 4)
    CrossEntropyForwardKernel(int64_t cols, int64_t stride, const Token* targets, const T* logits,
                              float* log_sums, double* row_losses) {
  __shared__ SoftmaxSum shared[kRowWarps];
  const int64_t i = blockIdx.x;
  const T* row = logits + i * stride;
  SoftmaxSum own{kBelowAll, 0};
  ForRow(row, cols, [&]<int kWidth>(int64_t j) {
    float v[kWidth];
    Load(row + j, v);
    float largest = own.largest;
    PIPELAG_UNROLL
    for (int k = 0; k < kWidth; ++k) largest = fmaxf(largest, v[k]);
    if (largest > own.largest) {
      own.sum *= Exponential<T>(own.largest - largest);
      own.largest = largest;
    }
    PIPELAG_UNROLL
    for (int k = 0; k < kWidth; ++k) own.sum += Exponential<T>(v[k] - largest);
  });
  PIPELAG_UNROLL
  for (int mask = kWarp / 2; mask > 0; mask /= 2) {
    own = Join<T>(own, {ShuffleXor(own.largest, mask), ShuffleXor(own.sum, mask)});
  }
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = own;
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int w = 1; w < kRowWarps; ++w) own = Join<T>(own, shared[w]);
  const double log_sum = log(static_cast<double>(own.sum));
  const auto largest = static_cast<double>(own.largest);
  log_sums[i] = static_cast<float>(log_sum + largest);
  row_losses[i] = log_sum + (largest - static_cast<double>(ToFloat(row[targets[i]])));
}

/// One block: *loss = Σ row_losses, as cross_entropy.h says.
static __global__ void __launch_bounds__(kRowThreads)
    AddLossesKernel(int64_t rows, const double* row_losses, double* loss) {
  __shared__ double shared[kRowThreads];
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t run = Blocks(rows, kRowThreads);
  const int64_t last = (thread + 1) * run < rows ? (thread + 1) * run : rows;
  double sum = 0;
  for (int64_t i = thread * run; i < last; ++i) sum += row_losses[i];
  shared[thread] = sum;
  __syncthreads();
  if (thread > 0) return;
  for (int t = 1; t < kRowThreads; ++t) sum += shared[t];
  *loss = sum;
}

template <class T>
__global__ void __launch_bounds__(kRowThreads)
    CrossEntropyBackwardKernel(int64_t cols, int64_t stride, const Token* targets, const T* logits,
                               const float* log_sums, float scale, T* logit_gradient) {
  const int64_t i = blockIdx.x;
  const T* row = logits + i * stride;
  T* gradient = logit_gradient + i * stride;
  const float log_sum = log_sums[i];
  const int64_t target = targets[i];
  ForRow(row, cols, [&]<int kWidth>(int64_t j) {
    float v[kWidth];
    Load(row + j, v);
    PIPELAG_UNROLL
    for (int k = 0; k < kWidth; ++k) {
      const float probability = Exponential<T>(v[k] - log_sum);
      v[k] = (j + k == target ? probability - 1 : probability) * scale;
    }
    Store(v, gradient + j);
  });
  for (int64_t j = cols + threadIdx.x; j < stride; j += kRowThreads) {
    gradient[j] = FromFloat<T>(0);
  }
}

}  // namespace pipelag::cuda
