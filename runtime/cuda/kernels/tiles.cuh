// Tiles of bf16 in shared memory and their products on tensor cores, for attention. A tile has
// kSize columns, 64 or 128; its rows are swizzled: the 16-byte chunk c of row r lies at place
// c ^ (r mod 8), so that the eight rows that ldmatrix reads together fall into different banks. A
// warp owns kRowTiles · 16 rows of its product. Knows nothing of softmax.
//
// Tiles begin at multiples of 256 bytes, so that where chunk c + 2 s of a row lies differs from
// where chunk c lies (c < 2) in the bits of 32 s alone: one exclusive or per step of a product.
#pragma once

#include "runtime/cuda/kernels/warp.cuh"

namespace pipelag::cuda {

constexpr int kChunk = kPack<Bfloat16>;
constexpr int kChunkBytes = 16;

template <int kSize>
constexpr int kRowBytes = kSize* static_cast<int>(sizeof(Bfloat16));

/// Where chunk `chunk` of a row of a tile lies.
template <int kSize>
__device__ __forceinline__ SharedAddress TilePlace(SharedAddress tile, int row, int chunk) {
  return tile +
         static_cast<SharedAddress>(row * kRowBytes<kSize> + (chunk ^ (row & 7)) * kChunkBytes);
}

/// The same place, 16 · `steps` columns further along; of a chunk below two.
__device__ __forceinline__ SharedAddress StepAlong(SharedAddress place, int steps) {
  return place ^ static_cast<SharedAddress>(2 * kChunkBytes * steps);
}

template <int kSize>
__device__ __forceinline__ SharedAddress StepDown(SharedAddress place, int rows) {
  return place + static_cast<SharedAddress>(rows * kRowBytes<kSize>);
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
__device__ __forceinline__ void StartTile(const TileSource& source, SharedAddress tile) {
  constexpr int kChunks = kSize / kChunk;
  constexpr int kRowsAtOnce = kThreads / kChunks;
  // A thread's rows lie at the same places of their chunks then.
  static_assert(kRows % kRowsAtOnce == 0 && kRowsAtOnce % 8 == 0);
  const int row = static_cast<int>(threadIdx.x) / kChunks;
  const int chunk = static_cast<int>(threadIdx.x) % kChunks;
  const bool inside = chunk * kChunk < source.cols;
  const SharedAddress place = TilePlace<kSize>(tile, row, chunk);
  const Bfloat16* from = source.from + row * source.stride + chunk * kChunk;
  PIPELAG_UNROLL
  for (int n = 0; n < kRows; n += kRowsAtOnce) {
    const bool valid = inside && row + n < source.rows;
    CopyAsync(StepDown<kSize>(place, n), valid ? from + n * source.stride : source.from, valid);
  }
}

/// acc += A · Bᵀ over the tiles' columns: kRowTiles · 16 rows of A from `row` on, kCols rows of B.
template <int kRowTiles, int kCols, int kSize>
__device__ __forceinline__ void AddProductTransposed(float (&acc)[kRowTiles][kCols / 8][4],
                                                     SharedAddress a, int row, SharedAddress b) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const SharedAddress left_place = TilePlace<kSize>(a, row + lane % 16, lane / 16);
  const SharedAddress right_place = TilePlace<kSize>(b, lane / 16 * 8 + lane % 8, lane / 8 % 2);
  PIPELAG_UNROLL
  for (int k = 0; k < kSize / 16; ++k) {
    uint32_t left[kRowTiles][4];
    PIPELAG_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      LoadMatrices(left[r], StepDown<kSize>(StepAlong(left_place, k), 16 * r));
    }
    PIPELAG_UNROLL
    for (int n = 0; n < kCols; n += 16) {
      uint32_t right[4];
      LoadMatrices(right, StepDown<kSize>(StepAlong(right_place, k), n));
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
                                           SharedAddress b) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const SharedAddress right_place = TilePlace<kSize>(b, lane % 16, lane / 16);
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
    for (int n = 0; n < kSize / 16; ++n) {
      uint32_t right[4];
      LoadMatricesTransposed(right, StepDown<kSize>(StepAlong(right_place, n), k));
      PIPELAG_UNROLL
      for (int r = 0; r < kRowTiles; ++r) {
        MultiplyAdd(acc[r][2 * n], left[r], right[0], right[1]);
        MultiplyAdd(acc[r][2 * n + 1], left[r], right[2], right[3]);
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
                                          const float (&factor)[kRowTiles][2], SharedAddress tile,
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
        StoreShared(PackBfloat16(acc[r][n][2 * half] * f, acc[r][n][2 * half + 1] * f),
                    TilePlace<kSize>(tile, row + 16 * r + 8 * half + lane / 4, n) +
                        static_cast<SharedAddress>(lane % 4 * 4));
      }
    }
  }
  __syncwarp();
  constexpr int kChunks = kSize / kChunk;
  for (int place = lane; place < kRowTiles * 16 * kChunks; place += kWarp) {
    const int own = place / kChunks;
    const int chunk = place % kChunks;
    if (own < target.rows && chunk * kChunk < target.cols) {
      StoreWords(LoadShared(TilePlace<kSize>(tile, row + own, chunk)),
                 target.to + own * target.stride + chunk * kChunk);
    }
  }
}

}  // namespace pipelag::cuda
