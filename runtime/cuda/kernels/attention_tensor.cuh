// Attention's kernels for bf16 on tensor cores, for heads of up to kSize = 64 or 128 numbers whose
// size is a multiple of 8; smaller heads leave zeros in the tiles. Streams one side's tiles past
// the other side's, double-buffered with cp.async. Knows no types but bf16.
//
// Sizes, with r row tiles of 16 rows per warp, 4 warps, s streamed rows, heads of D: an accumulator
// of 16 r × n takes r · n / 2 registers of a thread, of which it has 255 (65,536 per SM: two blocks
// of 128 threads). Shared memory per SM: 163 KiB on sm_80, 227 on sm_90 and sm_100.
//                r  s   float accumulators               tiles                     registers
//   forward  64  2  64  output 64, scores 64             128 + 4 · 64 rows, 48 KiB  246 245 230
//   forward 128  2  32  output 128, scores 32            128 + 4 · 32 rows, 64 KiB  255 255 255
//   keys     64  2  32  outputs 2 · 64, scores 2 · 32    256 + 4 · 32 rows, 48 KiB  255 255 255
//   keys    128  1  32  outputs 2 · 64, scores 2 · 16    128 + 4 · 32 rows, 64 KiB  255 255 253
//   queries  64  2  32  output 64, scores 2 · 32         256 + 4 · 32 rows, 48 KiB  247 243 168
//   queries 128  1  32  output 64, scores 2 · 16         128 + 4 · 32 rows, 64 KiB  167 166 168
// The registers are ptxas 13.0's for sm_80, sm_90, sm_100; only `keys 64` spills, 16 bytes on the
// first two. Two row tiles halve what an operand b costs: an ldmatrix of 512 bytes, 4 cycles of
// shared memory, then feeds four mma of 2048 multiply-adds each. Larger tiles do not fit.
#pragma once

#include "runtime/cuda/kernels/head_place.cuh"
#include "runtime/cuda/kernels/tiles.cuh"

namespace pipelag::cuda {

constexpr int kTileWarps = 4;
constexpr int kTileThreads = kTileWarps * kWarp;

/// How a kernel cuts its work: rows that a block owns, and rows that stream past them.
template <int kHeadSize, int kWarpRowTiles, int kStreamRows>
struct TileCut {
  static constexpr int kSize = kHeadSize;
  static constexpr int kRowTiles = kWarpRowTiles;
  static constexpr int kOwn = kTileWarps * kRowTiles * 16;
  static constexpr int kStream = kStreamRows;
  static constexpr int kOwnBytes = kOwn * kRowBytes<kSize>;
  static constexpr int kStreamBytes = kStream * kRowBytes<kSize>;
};

/// Rows from `first` on of the columns `column` of one head, at most to the end of its sequence.
__device__ __forceinline__ TileSource RowsOf(const AttentionShape& shape, const Bfloat16* matrix,
                                             int64_t stride, const HeadPlace& at, int64_t column,
                                             int64_t first) {
  return {matrix + (at.first_row + first) * stride + column, stride, shape.sequence - first,
          static_cast<int>(shape.head_size)};
}

/// Starts to fill the tiles that stream past a block's queries, in one of their two places each.
template <class Cut>
__device__ __forceinline__ void StartKeysAndValues(const AttentionShape& shape, const Bfloat16* qkv,
                                                   const HeadPlace& at, int tile,
                                                   SharedAddress keys, SharedAddress values) {
  const int64_t from = static_cast<int64_t>(tile) * Cut::kStream;
  const auto place = static_cast<SharedAddress>(tile % 2 * Cut::kStreamBytes);
  StartTile<Cut::kStream, Cut::kSize, kTileThreads>(
      RowsOf(shape, qkv, shape.stride(), at, at.key, from), keys + place);
  StartTile<Cut::kStream, Cut::kSize, kTileThreads>(
      RowsOf(shape, qkv, shape.stride(), at, at.value, from), values + place);
}

/// Online softmax of the rows g and g + 8 of each row tile that this lane holds with its three
/// neighbours: `largest` of the scores so far, `sum` of this lane's exponentials.
template <int kRowTiles, int kCols, int kOutputs>
__device__ __forceinline__ void SoftmaxStep(float power_scale, float (&scores)[kRowTiles][kCols][4],
                                            float (&largest)[kRowTiles][2],
                                            float (&sum)[kRowTiles][2],
                                            float (&output)[kRowTiles][kOutputs][4]) {
  PIPELAG_UNROLL
  for (int r = 0; r < kRowTiles; ++r) {
    PIPELAG_UNROLL
    for (int half = 0; half < 2; ++half) {
      float most = largest[r][half];
      PIPELAG_UNROLL
      for (int n = 0; n < kCols; ++n) {
        most = fmaxf(most, fmaxf(scores[r][n][2 * half], scores[r][n][2 * half + 1]));
      }
      most = WarpMax<4>(most);
      const float shift = most * power_scale;
      const float shrink = FastExp2(largest[r][half] * power_scale - shift);
      largest[r][half] = most;
      float added = 0;
      PIPELAG_UNROLL
      for (int n = 0; n < kCols; ++n) {
        PIPELAG_UNROLL
        for (int c = 2 * half; c < 2 * half + 2; ++c) {
          scores[r][n][c] = FastExp2(scores[r][n][c] * power_scale - shift);
          added += scores[r][n][c];
        }
      }
      sum[r][half] = sum[r][half] * shrink + added;
      PIPELAG_UNROLL
      for (int n = 0; n < kOutputs; ++n) {
        output[r][n][2 * half] *= shrink;
        output[r][n][2 * half + 1] *= shrink;
      }
    }
  }
}

/// Calls body(r, n, c, row, column) for what this lane holds of a product: accumulator [r][n][c] is
/// that of the row and column, counted from the warp's first ones.
template <int kRowTiles, int kCols, class Body>
__device__ __forceinline__ void ForOwnScores(Body body) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  PIPELAG_UNROLL
  for (int r = 0; r < kRowTiles; ++r) {
    PIPELAG_UNROLL
    for (int n = 0; n < kCols; ++n) {
      PIPELAG_UNROLL
      for (int c = 0; c < 4; ++c) {
        body(r, n, c, 16 * r + c / 2 * 8 + lane / 4, 8 * n + lane % 4 * 2 + c % 2);
      }
    }
  }
}

/// Blocks: tiles of queries of every head.
template <class Cut>
__global__ void __launch_bounds__(kTileThreads)
    AttentionForwardTensorKernel(AttentionShape shape, const Bfloat16* qkv, Bfloat16* attended,
                                 float* log_sums) {
  constexpr int kSize = Cut::kSize;
  constexpr int kRowTiles = Cut::kRowTiles;
  constexpr int kStream = Cut::kStream;
  const SharedAddress queries = DynamicSharedAddress();
  const SharedAddress keys = queries + Cut::kOwnBytes;
  const SharedAddress values = keys + 2 * Cut::kStreamBytes;
  const int warp_row = static_cast<int>(threadIdx.x) / kWarp * kRowTiles * 16;
  const OwnTile own = TileOfBlock<MostWork::kLastTile>(shape, shape.heads, Cut::kOwn);
  const HeadPlace at = PlaceOfHead(shape, own.sequence, own.head);
  const int64_t first = own.tile * Cut::kOwn;
  const int64_t end = first + Cut::kOwn < shape.sequence ? first + Cut::kOwn : shape.sequence;
  const auto tiles = static_cast<int>(Blocks(end, kStream));
  const auto start = [&](int tile) { StartKeysAndValues<Cut>(shape, qkv, at, tile, keys, values); };
  StartTile<Cut::kOwn, kSize, kTileThreads>(RowsOf(shape, qkv, shape.stride(), at, at.query, first),
                                            queries);
  start(0);

  const float scale = ScoreScale(shape);
  float output[kRowTiles][kSize / 8][4] = {};
  float largest[kRowTiles][2];
  float sum[kRowTiles][2] = {};
  PIPELAG_UNROLL
  for (int r = 0; r < kRowTiles; ++r) largest[r][0] = largest[r][1] = -INFINITY;
  for (int tile = 0; tile < tiles; ++tile) {
    WaitForCopies();
    __syncthreads();
    // Everyone is past the tile before, whose place the next one takes.
    if (tile + 1 < tiles) start(tile + 1);
    const int64_t from = static_cast<int64_t>(tile) * kStream;
    if (from > first + warp_row + kRowTiles * 16 - 1) continue;
    const auto place = static_cast<SharedAddress>(tile % 2 * Cut::kStreamBytes);
    float scores[kRowTiles][kStream / 8][4] = {};
    AddProductTransposed<kRowTiles, kStream, kSize>(scores, queries, warp_row, keys + place);
    if (from + kStream - 1 > first + warp_row) {
      const auto ahead = static_cast<int>(first + warp_row - from);
      ForOwnScores<kRowTiles, kStream / 8>([&](int r, int n, int c, int row, int col) {
        if (col > row + ahead) scores[r][n][c] = -INFINITY;
      });
    }
    SoftmaxStep(scale * kLog2E, scores, largest, sum, output);
    AddProduct<kRowTiles, kStream, kSize>(output, scores, values + place);
  }

  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float factor[kRowTiles][2];
  PIPELAG_UNROLL
  for (int r = 0; r < kRowTiles; ++r) {
    PIPELAG_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float total = WarpSum<4>(sum[r][half]);
      factor[r][half] = 1 / total;
      const int64_t t = first + warp_row + 16 * r + 8 * half + lane / 4;
      if (lane % 4 == 0 && t < shape.sequence) {
        log_sums[at.statistics + t] = largest[r][half] * scale + logf(total);
      }
    }
  }
  const int64_t row = first + warp_row;
  StoreRows<kRowTiles, kSize>(
      output, factor, queries, warp_row,
      {attended + (at.first_row + row) * shape.cols() + at.query, shape.cols(),
       shape.sequence - row, static_cast<int>(shape.head_size)});
}

}  // namespace pipelag::cuda
