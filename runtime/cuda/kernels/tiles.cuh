// Tiles of bf16 in shared memory and their products on tensor cores, for attention. A tile has
// kSize columns; its rows are swizzled: the 16-byte chunk c of row r lies at place c ^ (r mod 8),
// so that the eight rows that ldmatrix reads together fall into different banks. A warp owns
// kRowTiles · 16 rows of its product. Knows nothing of softmax.
#pragma once

#include "runtime/cuda/kernels/warp.cuh"

namespace pipelag::cuda {

constexpr int kChunk = kPack<Bfloat16>;

/// Where chunk `chunk` of a row lies.
template <int kSize>
__device__ __forceinline__ int TilePlace(int row, int chunk) {
  return row * kSize + (chunk ^ (row & 7)) * kChunk;
}

/// Rows of a matrix that a tile is filled from, the first of them at `from`.
struct TileSource {
  const Bfloat16* from;
  int64_t stride;
  int64_t rows;  ///< those behind are zeros in the tile
  int cols;      ///< a multiple of kChunk; so are those behind
};

/// Starts to fill a tile of kRows rows; all kThreads threads of the block take part.
template <int kRows, int kSize, int kThreads>
__device__ __forceinline__ void StartTile(const TileSource& source, Bfloat16* tile) {
  constexpr int kChunks = kSize / kChunk;
  static_assert(kRows * kChunks % kThreads == 0);
  PIPELAG_UNROLL
  for (int n = 0; n < kRows * kChunks / kThreads; ++n) {
    const int place = static_cast<int>(threadIdx.x) + n * kThreads;
    const int row = place / kChunks;
    const int chunk = place % kChunks;
    const bool valid = row < source.rows && chunk * kChunk < source.cols;
    const int64_t offset = valid ? row * source.stride + chunk * kChunk : 0;
    CopyAsync(tile + TilePlace<kSize>(row, chunk), source.from + offset, valid);
  }
}

/// Of 16 columns (k) of 16 rows of a tile, the first row at `row`: operand a of MultiplyAdd.
template <int kSize>
__device__ __forceinline__ void LoadA(uint32_t (&a)[4], const Bfloat16* tile, int row, int k) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  LoadMatrices(a, tile + TilePlace<kSize>(row + lane % 16, k / kChunk + lane / 16));
}

/// acc += A · Bᵀ over the tiles' columns: kRowTiles · 16 rows of A from `row` on, kCols rows of B.
template <int kRowTiles, int kCols, int kSize>
__device__ __forceinline__ void AddProductTransposed(float (&acc)[kRowTiles][kCols / 8][4],
                                                     const Bfloat16* a, int row,
                                                     const Bfloat16* b) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  PIPELAG_UNROLL
  for (int k = 0; k < kSize; k += 16) {
    uint32_t left[kRowTiles][4];
    PIPELAG_UNROLL
    for (int r = 0; r < kRowTiles; ++r) LoadA<kSize>(left[r], a, row + 16 * r, k);
    PIPELAG_UNROLL
    for (int n = 0; n < kCols; n += 16) {
      uint32_t right[4];
      LoadMatrices(right,
                   b + TilePlace<kSize>(n + lane / 16 * 8 + lane % 8, k / kChunk + lane / 8 % 2));
      PIPELAG_UNROLL
      for (int r = 0; r < kRowTiles; ++r) {
        MultiplyAdd(acc[r][n / 8], left[r], right[0], right[1]);
        MultiplyAdd(acc[r][n / 8 + 1], left[r], right[2], right[3]);
      }
    }
  }
}

/// acc += A · B: the columns of A, which the warp holds in float as products left them, meet the
/// kInner rows of B. A is rounded to bf16.
template <int kRowTiles, int kInner, int kSize>
__device__ __forceinline__ void AddProduct(float (&acc)[kRowTiles][kSize / 8][4],
                                           const float (&a)[kRowTiles][kInner / 8][4],
                                           const Bfloat16* b) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  PIPELAG_UNROLL
  for (int k = 0; k < kInner; k += 16) {
    uint32_t left[kRowTiles][4];
    PIPELAG_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      // Accumulators of two neighbouring column tiles are one operand a, lane by lane.
      PIPELAG_UNROLL
      for (int half = 0; half < 2; ++half) {
        const float(&of)[4] = a[r][k / 8 + half];
        left[r][2 * half] = PackBfloat16(of[0], of[1]);
        left[r][2 * half + 1] = PackBfloat16(of[2], of[3]);
      }
    }
    PIPELAG_UNROLL
    for (int n = 0; n < kSize; n += 16) {
      uint32_t right[4];
      LoadMatricesTransposed(right, b + TilePlace<kSize>(k + lane % 16, n / kChunk + lane / 16));
      PIPELAG_UNROLL
      for (int r = 0; r < kRowTiles; ++r) {
        MultiplyAdd(acc[r][n / 8], left[r], right[0], right[1]);
        MultiplyAdd(acc[r][n / 8 + 1], left[r], right[2], right[3]);
      }
    }
  }
}

/// Where a warp's rows of a result go, the first of them to `to`.
struct TileTarget {
  Bfloat16* to;
  int64_t stride;
  int64_t rows;  ///< those behind are dropped
  int cols;      ///< so are those behind
};

/// Writes the warp's rows, each times its factor (rows g and g + 8 of each row tile), through its
/// own rows of `tile` from `row` on, which nobody else uses any more: whole packs to memory.
template <int kRowTiles, int kSize>
__device__ __forceinline__ void StoreRows(const float (&acc)[kRowTiles][kSize / 8][4],
                                          const float (&factor)[kRowTiles][2], Bfloat16* tile,
                                          int row, const TileTarget& target) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  __syncwarp();
  PIPELAG_UNROLL
  for (int r = 0; r < kRowTiles; ++r) {
    PIPELAG_UNROLL
    for (int n = 0; n < kSize / 8; ++n) {
      PIPELAG_UNROLL
      for (int half = 0; half < 2; ++half) {
        const float f = factor[r][half];
        StorePair(PackBfloat16(acc[r][n][2 * half] * f, acc[r][n][2 * half + 1] * f),
                  tile + TilePlace<kSize>(row + 16 * r + 8 * half + lane / 4, n) + lane % 4 * 2);
      }
    }
  }
  __syncwarp();
  constexpr int kChunks = kSize / kChunk;
  for (int place = lane; place < kRowTiles * 16 * kChunks; place += kWarp) {
    const int own = place / kChunks;
    const int chunk = place % kChunks;
    if (own < target.rows && chunk * kChunk < target.cols) {
      StoreWords(LoadWords(tile + TilePlace<kSize>(row + own, chunk)),
                 target.to + own * target.stride + chunk * kChunk);
    }
  }
}

}  // namespace pipelag::cuda
