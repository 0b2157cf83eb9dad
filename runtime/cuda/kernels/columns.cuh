// Sums over the columns of a matrix in two passes of fixed order: chunks of rows, then the chunks.
// Knows neither what is summed nor whose gradient it is.
#pragma once

#include <cstdint>

#include "runtime/cuda/kernels/warp.cuh"

namespace pipelag::cuda {

/// The rows of a chunk: enough of them to hide a chunk's end, but no more chunks than the second
/// pass sums quickly. Depends on the number of rows only, as the order of the sums does.
PIPELAG_ANYWHERE constexpr int64_t RowsOfChunk(int64_t rows) {
  constexpr int64_t kFewest = 64;
  constexpr int64_t kMostChunks = 256;
  const int64_t each = Blocks(rows, kMostChunks);
  return each < kFewest ? kFewest : each;
}
PIPELAG_ANYWHERE constexpr int64_t Chunks(int64_t rows) { return Blocks(rows, RowsOfChunk(rows)); }

constexpr int kColumnWarps = 4;

/// partials (kSums, chunks, cols): each warp of a block takes every kColumnWarps-th row of the
/// chunk blockIdx.y, each lane kWidth columns; then the warps' sums are added in order.
template <int kWidth, class Terms>
__global__ void __launch_bounds__(kColumnWarps* kWarp, 6)
    SumChunksKernel(int64_t rows, int64_t cols, Terms terms, float* partials) {
  constexpr int kSums = Terms::kSums;
  __shared__ float shared[kColumnWarps - 1][kSums][kWarp][kWidth];
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t j = (static_cast<int64_t>(blockIdx.x) * kWarp + lane) * kWidth;
  const int64_t chunk = blockIdx.y;
  const int64_t first = chunk * RowsOfChunk(rows);
  const int64_t last = first + RowsOfChunk(rows) < rows ? first + RowsOfChunk(rows) : rows;
  float sums[kSums][kWidth] = {};
  if (j < cols) {
    PIPELAG_UNROLL_BY_4
    for (int64_t row = first + warp; row < last; row += kColumnWarps) {
      terms.template AddTo<kWidth>(row, j, sums);
    }
  }
  if (warp > 0) {
    PIPELAG_UNROLL
    for (int s = 0; s < kSums; ++s) {
      PIPELAG_UNROLL
      for (int k = 0; k < kWidth; ++k) shared[warp - 1][s][lane][k] = sums[s][k];
    }
  }
  __syncthreads();
  if (warp > 0 || j >= cols) return;
  PIPELAG_UNROLL
  for (int s = 0; s < kSums; ++s) {
    for (int w = 0; w < kColumnWarps - 1; ++w) {
      PIPELAG_UNROLL
      for (int k = 0; k < kWidth; ++k) sums[s][k] += shared[w][s][lane][k];
    }
    float* to = partials + (s * static_cast<int64_t>(gridDim.y) + chunk) * cols + j;
    PIPELAG_UNROLL
    for (int k = 0; k < kWidth; ++k) to[k] = sums[s][k];
  }
}

constexpr int kFoldWarps = 8;

/// sums[j] += Σ over chunks of partials[chunk,j]: each warp adds a run of neighbouring chunks, a
/// lane a column; then the runs are added in order.
static __global__ void __launch_bounds__(kFoldWarps* kWarp)
    FoldChunksKernel(int64_t chunks, int64_t cols, const float* partials, float* sums) {
  __shared__ float shared[kFoldWarps][kWarp];
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t j = static_cast<int64_t>(blockIdx.x) * kWarp + lane;
  const int64_t run = Blocks(chunks, kFoldWarps);
  const int64_t last = (warp + 1) * run < chunks ? (warp + 1) * run : chunks;
  float sum = 0;
  if (j < cols) {
    PIPELAG_UNROLL_BY_4
    for (int64_t chunk = warp * run; chunk < last; ++chunk) sum += partials[chunk * cols + j];
  }
  shared[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || j >= cols) return;
  for (int w = 1; w < kFoldWarps; ++w) sum += shared[w][lane];
  sums[j] += sum;
}

/// Both passes; `sums` has a pointer for each of the terms' sums, none of them null.
template <int kWidth, class Terms>
void SumColumns(Stream stream, int64_t rows, int64_t cols, const Terms& terms, float* scratch,
                float* const (&sums)[Terms::kSums]) {
  const int64_t chunks = Chunks(rows);
  Launch(stream, {Blocks(cols, kWarp * kWidth), chunks}, kColumnWarps * kWarp, 0,
         SumChunksKernel<kWidth, Terms>, rows, cols, terms, scratch);
  for (int s = 0; s < Terms::kSums; ++s) {
    Launch(stream, {Blocks(cols, kWarp)}, kFoldWarps * kWarp, 0, FoldChunksKernel, chunks, cols,
           scratch + s * chunks * cols, sums[s]);
  }
}

}  // namespace pipelag::cuda
