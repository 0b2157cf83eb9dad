// The backward of attention_tensor.cuh, whose sizes it shares: one kernel owns keys and values and
// lets queries stream past, the other the other way round; both compute the probabilities again
// from log_sums. Rows and columns of a product are those of its own and of its streamed tiles, so
// that what the warp holds of one product is operand a of the next.
#pragma once

#include "runtime/cuda/kernels/attention_tensor.cuh"

namespace pipelag::cuda {

/// Blocks: tiles of keys of every key head. Steps run over the heads that share these keys, in
/// order, and over the tiles of queries from the diagonal on.
template <class Cut>
__global__ void __launch_bounds__(kTileThreads)
    AttentionBackwardKeysTensorKernel(AttentionShape shape, const Bfloat16* qkv,
                                      const float* log_sums, const Bfloat16* attended_gradient,
                                      const float* row_dots, Bfloat16* qkv_gradient) {
  constexpr int kSize = Cut::kSize;
  constexpr int kRowTiles = Cut::kRowTiles;
  constexpr int kStream = Cut::kStream;
  static_assert(2 * kStream <= kTileThreads);
  __shared__ float statistics[2][2][kStream];
  const SharedAddress keys = DynamicSharedAddress();
  const SharedAddress values = keys + Cut::kOwnBytes;
  const SharedAddress queries = values + Cut::kOwnBytes;
  const SharedAddress gradients = queries + 2 * Cut::kStreamBytes;
  const int thread = static_cast<int>(threadIdx.x);
  const int warp_row = thread / kWarp * kRowTiles * 16;
  const OwnTile block = TileOfBlock<MostWork::kFirstTile>(shape, shape.kv_heads, Cut::kOwn);
  const auto group = static_cast<int>(shape.heads / shape.kv_heads);
  const int64_t first_head = block.head * group;
  const HeadPlace own = PlaceOfHead(shape, block.sequence, first_head);
  const int64_t first = block.tile * Cut::kOwn;
  const int64_t first_tile = first / kStream;
  const auto tiles = static_cast<int>(Blocks(shape.sequence, kStream) - first_tile);
  const auto start = [&](int step) {
    const HeadPlace at = PlaceOfHead(shape, block.sequence, first_head + step / tiles);
    const int64_t from = (first_tile + step % tiles) * kStream;
    const auto place = static_cast<SharedAddress>(step % 2 * Cut::kStreamBytes);
    StartTile<kStream, kSize, kTileThreads>(RowsOf(shape, qkv, shape.stride(), at, at.query, from),
                                            queries + place);
    StartTile<kStream, kSize, kTileThreads>(
        RowsOf(shape, attended_gradient, shape.cols(), at, at.query, from), gradients + place);
    if (thread < 2 * kStream) {
      // A query behind the sequence's end has no probabilities: 2^−∞.
      const int64_t t = from + thread % kStream;
      const bool sums = thread < kStream;
      float value = sums ? INFINITY : 0;
      if (t < shape.sequence) value = (sums ? log_sums : row_dots)[at.statistics + t];
      statistics[step % 2][thread / kStream][thread % kStream] = sums ? value * kLog2E : value;
    }
  };
  StartTile<Cut::kOwn, kSize, kTileThreads>(RowsOf(shape, qkv, shape.stride(), own, own.key, first),
                                            keys);
  StartTile<Cut::kOwn, kSize, kTileThreads>(
      RowsOf(shape, qkv, shape.stride(), own, own.value, first), values);
  start(0);

  const float scale = ScoreScale(shape);
  float key_gradient[kRowTiles][kSize / 8][4] = {};
  float value_gradient[kRowTiles][kSize / 8][4] = {};
  for (int step = 0; step < group * tiles; ++step) {
    WaitForCopies();
    __syncthreads();
    if (step + 1 < group * tiles) start(step + 1);
    const int64_t from = (first_tile + step % tiles) * kStream;
    if (from + kStream - 1 < first + warp_row) continue;
    const auto place = static_cast<SharedAddress>(step % 2 * Cut::kStreamBytes);
    float scores[kRowTiles][kStream / 8][4] = {};
    AddProductTransposed<kRowTiles, kStream, kSize>(scores, keys, warp_row, queries + place);
    const auto ahead = static_cast<int>(first + warp_row - from);
    if (ahead + kRowTiles * 16 > 1) {
      ForOwnScores<kRowTiles, kStream / 8>([&](int r, int n, int c, int row, int col) {
        if (col < row + ahead) scores[r][n][c] = -INFINITY;
      });
    }
    ForOwnScores<kRowTiles, kStream / 8>([&](int r, int n, int c, int /*row*/, int col) {
      scores[r][n][c] = FastExp2(scores[r][n][c] * (scale * kLog2E) - statistics[step % 2][0][col]);
    });
    AddProduct<kRowTiles, kStream, kSize>(value_gradient, scores, gradients + place);
    float slopes[kRowTiles][kStream / 8][4] = {};
    AddProductTransposed<kRowTiles, kStream, kSize>(slopes, values, warp_row, gradients + place);
    ForOwnScores<kRowTiles, kStream / 8>([&](int r, int n, int c, int /*row*/, int col) {
      slopes[r][n][c] = scores[r][n][c] * (slopes[r][n][c] - statistics[step % 2][1][col]);
    });
    AddProduct<kRowTiles, kStream, kSize>(key_gradient, slopes, queries + place);
  }

  float factor[kRowTiles][2];
  PIPELAG_UNROLL
  for (int r = 0; r < kRowTiles; ++r) factor[r][0] = factor[r][1] = scale;
  const int64_t row = first + warp_row;
  Bfloat16* to = qkv_gradient + (own.first_row + row) * shape.stride();
  const int64_t rows = shape.sequence - row;
  const auto cols = static_cast<int>(shape.head_size);
  StoreRows<kRowTiles, kSize>(key_gradient, factor, keys, warp_row,
                              {to + own.key, shape.stride(), rows, cols});
  PIPELAG_UNROLL
  for (int r = 0; r < kRowTiles; ++r) factor[r][0] = factor[r][1] = 1;
  StoreRows<kRowTiles, kSize>(value_gradient, factor, values, warp_row,
                              {to + own.value, shape.stride(), rows, cols});
}

/// Blocks: tiles of queries of every head.
template <class Cut>
__global__ void __launch_bounds__(kTileThreads)
    AttentionBackwardQueriesTensorKernel(AttentionShape shape, const Bfloat16* qkv,
                                         const float* log_sums, const Bfloat16* attended_gradient,
                                         const float* row_dots, Bfloat16* qkv_gradient) {
  constexpr int kSize = Cut::kSize;
  constexpr int kRowTiles = Cut::kRowTiles;
  constexpr int kStream = Cut::kStream;
  const SharedAddress queries = DynamicSharedAddress();
  const SharedAddress gradients = queries + Cut::kOwnBytes;
  const SharedAddress keys = gradients + Cut::kOwnBytes;
  const SharedAddress values = keys + 2 * Cut::kStreamBytes;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp_row = static_cast<int>(threadIdx.x) / kWarp * kRowTiles * 16;
  const OwnTile own = TileOfBlock<MostWork::kLastTile>(shape, shape.heads, Cut::kOwn);
  const HeadPlace at = PlaceOfHead(shape, own.sequence, own.head);
  const int64_t first = own.tile * Cut::kOwn;
  const int64_t end = first + Cut::kOwn < shape.sequence ? first + Cut::kOwn : shape.sequence;
  const auto tiles = static_cast<int>(Blocks(end, kStream));
  const auto start = [&](int tile) { StartKeysAndValues<Cut>(shape, qkv, at, tile, keys, values); };
  StartTile<Cut::kOwn, kSize, kTileThreads>(RowsOf(shape, qkv, shape.stride(), at, at.query, first),
                                            queries);
  StartTile<Cut::kOwn, kSize, kTileThreads>(
      RowsOf(shape, attended_gradient, shape.cols(), at, at.query, first), gradients);
  start(0);

  const float scale = ScoreScale(shape);
  float log_sum[kRowTiles][2];
  float dot[kRowTiles][2];
  float factor[kRowTiles][2];
  PIPELAG_UNROLL
  for (int r = 0; r < kRowTiles; ++r) {
    PIPELAG_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int64_t t = first + warp_row + 16 * r + 8 * half + lane / 4;
      const bool inside = t < shape.sequence;
      log_sum[r][half] = inside ? log_sums[at.statistics + t] * kLog2E : INFINITY;
      dot[r][half] = inside ? row_dots[at.statistics + t] : 0;
      factor[r][half] = scale;
    }
  }
  float query_gradient[kRowTiles][kSize / 8][4] = {};
  for (int tile = 0; tile < tiles; ++tile) {
    WaitForCopies();
    __syncthreads();
    if (tile + 1 < tiles) start(tile + 1);
    const int64_t from = static_cast<int64_t>(tile) * kStream;
    if (from > first + warp_row + kRowTiles * 16 - 1) continue;
    const auto place = static_cast<SharedAddress>(tile % 2 * Cut::kStreamBytes);
    float scores[kRowTiles][kStream / 8][4] = {};
    AddProductTransposed<kRowTiles, kStream, kSize>(scores, queries, warp_row, keys + place);
    float slopes[kRowTiles][kStream / 8][4] = {};
    AddProductTransposed<kRowTiles, kStream, kSize>(slopes, gradients, warp_row, values + place);
    if (from + kStream - 1 > first + warp_row) {
      const auto ahead = static_cast<int>(first + warp_row - from);
      ForOwnScores<kRowTiles, kStream / 8>([&](int r, int n, int c, int row, int col) {
        if (col > row + ahead) scores[r][n][c] = -INFINITY;
      });
    }
    ForOwnScores<kRowTiles, kStream / 8>([&](int r, int n, int c, int /*row*/, int /*col*/) {
      const float probability = FastExp2(scores[r][n][c] * (scale * kLog2E) - log_sum[r][c / 2]);
      slopes[r][n][c] = probability * (slopes[r][n][c] - dot[r][c / 2]);
    });
    AddProduct<kRowTiles, kStream, kSize>(query_gradient, slopes, keys + place);
  }
  const int64_t row = first + warp_row;
  StoreRows<kRowTiles, kSize>(
      query_gradient, factor, queries, warp_row,
      {qkv_gradient + (at.first_row + row) * shape.stride() + at.query, shape.stride(),
       shape.sequence - row, static_cast<int>(shape.head_size)});
}

}  // namespace pipelag::cuda
