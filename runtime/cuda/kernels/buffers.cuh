// Kernels of buffers.h: a thread works on four numbers, or on the last few. Knows no tensors but
// the pieces that it is given.
#pragma once

#include "runtime/cuda/kernels/buffers.h"
#include "runtime/cuda/kernels/warp.cuh"

namespace pipelag::cuda {

constexpr int kBufferThreads = 256;
constexpr int kBufferWidth = 8;

/// Calls body.operator()<width>(index) for this thread's part of a buffer.
template <class Body>
__device__ __forceinline__ void ForOwnNumbers(int64_t elements, Body body) {
  const int64_t i =
      (static_cast<int64_t>(blockIdx.x) * kBufferThreads + threadIdx.x) * kBufferWidth;
  if (i + kBufferWidth <= elements) {
    body.template operator()<kBufferWidth>(i);
  } else {
    for (int64_t j = i; j < elements; ++j) body.template operator()<1>(j);
  }
}

static __global__ void ConvertKernel(int64_t elements, const float* from, Bfloat16* to) {
  ForOwnNumbers(elements, [&]<int kWidth>(int64_t i) {
    float v[kWidth];
    Load(from + i, v);
    Store(v, to + i);
  });
}

static __global__ void AddBufferKernel(int64_t elements, const float* summand, float* sum) {
  ForOwnNumbers(elements, [&]<int kWidth>(int64_t i) {
    float v[kWidth];
    float other[kWidth];
    Load(sum + i, v);
    Load(summand + i, other);
    PIPELAG_UNROLL
    for (int k = 0; k < kWidth; ++k) v[k] += other[k];
    Store(v, sum + i);
  });
}

constexpr int64_t kNormPiece = 65536;

struct ListedPieces {
  const TensorSpan* pieces;
  __device__ __forceinline__ TensorSpan At(int64_t index) const { return pieces[index]; }
};
/// Of a tensor that is all there is.
struct PiecesOfOne {
  int64_t elements;
  __device__ __forceinline__ TensorSpan At(int64_t index) const {
    const int64_t offset = index * kNormPiece;
    const int64_t left = elements - offset;
    return {offset, left < kNormPiece ? left : kNormPiece};
  }
};

/// A block adds the squares of a piece: each thread every kBufferThreads-th four, then a tree.
template <class Pieces>
__global__ void __launch_bounds__(kBufferThreads)
    SquarePiecesKernel(Pieces pieces, const float* values, double* sums) {
  __shared__ double shared[kBufferThreads / kWarp];
  constexpr int kWidth = 4;
  const int thread = static_cast<int>(threadIdx.x);
  const TensorSpan piece = pieces.At(blockIdx.x);
  const float* from = values + piece.offset;
  const int64_t packed = piece.offset % kWidth == 0 ? piece.elements / kWidth * kWidth : 0;
  double squares[kWidth] = {};
  PIPELAG_UNROLL_BY_4
  for (int64_t i = thread * kWidth; i < packed; i += kBufferThreads * kWidth) {
    float v[kWidth];
    Load(from + i, v);
    PIPELAG_UNROLL
    for (int k = 0; k < kWidth; ++k) {
      squares[k] += static_cast<double>(v[k]) * static_cast<double>(v[k]);
    }
  }
  for (int64_t i = packed + thread; i < piece.elements; i += kBufferThreads) {
    squares[0] += static_cast<double>(from[i]) * static_cast<double>(from[i]);
  }
  double sum = WarpSum((squares[0] + squares[1]) + (squares[2] + squares[3]));
  if (thread % kWarp == 0) shared[thread / kWarp] = sum;
  __syncthreads();
  if (thread > 0) return;
  for (int w = 1; w < kBufferThreads / kWarp; ++w) sum += shared[w];
  sums[blockIdx.x] = sum;
}

/// A warp adds the pieces of a tensor; without a list all `pieces` are one tensor's.
static __global__ void __launch_bounds__(kWarp)
    AddPiecesKernel(const int64_t* first_pieces, int64_t pieces, const double* sums,
                    double* norms) {
  const int64_t tensor = blockIdx.x;
  const int64_t first = first_pieces == nullptr ? 0 : first_pieces[tensor];
  const int64_t last = first_pieces == nullptr ? pieces : first_pieces[tensor + 1];
  double sum = 0;
  for (int64_t i = first + threadIdx.x; i < last; i += kWarp) sum += sums[i];
  sum = WarpSum(sum);
  if (threadIdx.x == 0) norms[tensor] = sum;
}

static __global__ void __launch_bounds__(kWarp)
    ClipFactorKernel(int64_t count, const double* squared_norms, double max_norm, float* factor) {
  if (threadIdx.x > 0) return;
  double total = 0;
  for (int64_t i = 0; i < count; ++i) total += squared_norms[i];
  const double norm = sqrt(total);
  *factor = norm > max_norm ? static_cast<float>(max_norm / norm) : 1.0f;
}

}  // namespace pipelag::cuda
