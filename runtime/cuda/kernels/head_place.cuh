// Where one head of one sequence lies in the matrices of attention.h, and the pass over the
// attended rows that both ways of attention's backward begin with.
#pragma once

#include "runtime/cuda/kernels/attention.h"
#include "runtime/cuda/kernels/warp.cuh"

namespace pipelag::cuda {

struct HeadPlace {
  int64_t first_row;  ///< of qkv and of attended
  int64_t query;      ///< its columns of qkv; those of attended are the same
  int64_t key;
  int64_t value;
  int64_t statistics;  ///< in log_sums and row_dots
};

PIPELAG_ANYWHERE inline HeadPlace PlaceOfHead(const AttentionShape& shape, int64_t sequence,
                                              int64_t head) {
  const int64_t shared = head / (shape.heads / shape.kv_heads) * shape.head_size;
  const int64_t key = shape.heads * shape.head_size + shared;
  return {sequence * shape.sequence, head * shape.head_size, key,
          key + shape.kv_heads * shape.head_size, (sequence * shape.heads + head) * shape.sequence};
}

/// What a block owns: a tile of rows of a head of a sequence, `head` counted over all sequences.
/// Blocks that start one behind the other own the tiles of one head, whose rows that stream past
/// them then stay in the cache; the tile with most to do comes first.
struct OwnTile {
  int64_t tile;
  int64_t sequence;
  int64_t head;
};
enum class MostWork { kFirstTile, kLastTile };
template <MostWork kMost>
__device__ __forceinline__ OwnTile TileOfBlock(const AttentionShape& shape, int64_t heads,
                                               int64_t rows) {
  const auto tiles = static_cast<uint32_t>(Blocks(shape.sequence, rows));
  const uint32_t head = blockIdx.x / tiles;
  const uint32_t place = blockIdx.x - head * tiles;
  const uint32_t sequence = head / static_cast<uint32_t>(heads);
  return {kMost == MostWork::kFirstTile ? place : tiles - 1 - place, sequence,
          head - sequence * static_cast<uint32_t>(heads)};
}

__device__ __forceinline__ float ScoreScale(const AttentionShape& shape) {
  return 1 / sqrtf(static_cast<float>(shape.head_size));
}

constexpr int kDotWarps = 4;

/// Blocks: rows of `attended`. Groups of kLanes lanes take a head each: row_dots = Σ gradient ⊙
/// attended (Dao, arXiv 2307.08691, section 3.1.2: D). Moves rows · cols · 2 sizeof(T) bytes.
template <class T, int kWidth, int kLanes>
__global__ void __launch_bounds__(kDotWarps* kWarp)
    RowDotsKernel(AttentionShape shape, const T* attended, const T* attended_gradient,
                  float* row_dots) {
  const int64_t row = blockIdx.x;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  constexpr int kGroups = kDotWarps * kWarp / kLanes;
  // Every lane takes part in the sums, also where a group has no head left.
  for (int64_t base = 0; base < shape.heads; base += kGroups) {
    const int64_t head = base + threadIdx.x / kLanes;
    float sum = 0;
    for (int64_t j = lane * kWidth; head < shape.heads && j < shape.head_size;
         j += kLanes * kWidth) {
      const int64_t i = row * shape.cols() + head * shape.head_size + j;
      float a[kWidth];
      float g[kWidth];
      Load(attended + i, a);
      Load(attended_gradient + i, g);
      PIPELAG_UNROLL
      for (int k = 0; k < kWidth; ++k) sum += a[k] * g[k];
    }
    sum = WarpSum<kLanes>(sum);
    if (lane == 0 && head < shape.heads) {
      const HeadPlace at = PlaceOfHead(shape, row / shape.sequence, head);
      row_dots[at.statistics + row % shape.sequence] = sum;
    }
  }
}

}  // namespace pipelag::cuda
