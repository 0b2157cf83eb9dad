// Attention's kernels without tensor cores, in float arithmetic: for float, and for bf16 heads
// whose size is no multiple of 8. The shape of attention_tensor.cuh's kernels with plain loops:
// a block owns kPlainRows rows, four lanes each; tiles of the other side pass as floats in shared
// memory, a number more per row than there are, so that lanes of different rows meet different
// banks. Exact rather than quick: at most 4 · 32 · 129 + 32 · 33 floats, 69 KiB a block.
#pragma once

#include "runtime/cuda/kernels/head_place.cuh"

namespace pipelag::cuda {

constexpr int kPlainRows = 32;
constexpr int kLanesPerRow = 4;
constexpr int kPlainThreads = kPlainRows * kLanesPerRow;
constexpr int kPlainCols = kPlainRows / kLanesPerRow;  ///< of a tile of scores, per lane
constexpr int kPlainSize = static_cast<int>(kLargestHead) / kLanesPerRow;  ///< of a row, per lane

/// A head's rows in memory, from `first` on.
template <class T>
struct PlainSource {
  const T* from;
  int64_t stride;
  int64_t rows;
};

/// Fills kPlainRows rows of a tile; those behind the source's end are zeros.
template <class T>
__device__ __forceinline__ void FillTile(const PlainSource<T>& source, int size, float* tile) {
  for (int i = static_cast<int>(threadIdx.x); i < kPlainRows * size; i += kPlainThreads) {
    const int row = i / size;
    const int col = i % size;
    tile[row * (size + 1) + col] =
        row < source.rows ? ToFloat(source.from[row * source.stride + col]) : 0;
  }
}

/// products[n] = own row · row (lane + kLanesPerRow n) of `tile`.
__device__ __forceinline__ void MultiplyRows(int size, const float* own, const float* tile,
                                             int lane, float (&products)[kPlainCols]) {
  PIPELAG_UNROLL
  for (int n = 0; n < kPlainCols; ++n) products[n] = 0;
  for (int k = 0; k < size; ++k) {
    PIPELAG_UNROLL
    for (int n = 0; n < kPlainCols; ++n) {
      products[n] += own[k] * tile[(lane + kLanesPerRow * n) * (size + 1) + k];
    }
  }
}

/// acc[n] += Σ over rows of factors[row] · column (lane + kLanesPerRow n) of `tile`.
__device__ __forceinline__ void AddRowsTimes(int size, const float* factors, const float* tile,
                                             int lane, float (&acc)[kPlainSize]) {
  for (int row = 0; row < kPlainRows; ++row) {
    PIPELAG_UNROLL
    for (int n = 0; n < kPlainSize; ++n) {
      const int col = lane + kLanesPerRow * n;
      if (col < size) acc[n] += factors[row] * tile[row * (size + 1) + col];
    }
  }
}

template <class T>
__device__ __forceinline__ void StorePlainRow(int size, const float (&acc)[kPlainSize],
                                              float factor, int lane, T* to) {
  PIPELAG_UNROLL
  for (int n = 0; n < kPlainSize; ++n) {
    const int col = lane + kLanesPerRow * n;
    if (col < size) to[col] = FromFloat<T>(acc[n] * factor);
  }
}

/// The lanes of a row leave their part of it (column lane + kLanesPerRow n) for one another.
__device__ __forceinline__ void ShareRow(const float (&part)[kPlainCols], int lane, float* row) {
  __syncwarp();
  PIPELAG_UNROLL
  for (int n = 0; n < kPlainCols; ++n) row[lane + kLanesPerRow * n] = part[n];
  __syncwarp();
}

/// Which rows of which head this thread's block owns.
struct PlainBlock {
  int64_t sequence;
  int64_t head;
  int64_t first;  ///< of the block's rows
  int row;        ///< of this thread, counted from there
  int lane;       ///< among the lanes of the row
};

template <MostWork kMost>
__device__ __forceinline__ PlainBlock OwnRows(const AttentionShape& shape, int64_t heads) {
  const OwnTile own = TileOfBlock<kMost>(shape, heads, kPlainRows);
  return {own.sequence, own.head, own.tile * kPlainRows,
          static_cast<int>(threadIdx.x) / kLanesPerRow,
          static_cast<int>(threadIdx.x) % kLanesPerRow};
}

constexpr int kSharedRow = kPlainRows + 1;

/// Floats of shared memory for `tiles` tiles of rows and `squares` of scores.
constexpr size_t PlainSharedBytes(int64_t size, int64_t tiles, int64_t squares) {
  return static_cast<size_t>(kPlainRows * ((size + 1) * tiles + kSharedRow * squares)) *
         sizeof(float);
}

/// Blocks: tiles of queries of every head.
template <class T>
__global__ void __launch_bounds__(kPlainThreads, 2)
    AttentionForwardPlainKernel(AttentionShape shape, const T* qkv, T* attended, float* log_sums) {
  const auto size = static_cast<int>(shape.head_size);
  auto* queries = static_cast<float*>(DynamicShared());
  float* keys = queries + kPlainRows * (size + 1);
  float* values = keys + kPlainRows * (size + 1);
  float* shared = values + kPlainRows * (size + 1);
  const PlainBlock block = OwnRows<MostWork::kLastTile>(shape, shape.heads);
  const HeadPlace at = PlaceOfHead(shape, block.sequence, block.head);
  const int64_t query = block.first + block.row;
  const auto source = [&](int64_t column, int64_t first) {
    return PlainSource<T>{qkv + (at.first_row + first) * shape.stride() + column, shape.stride(),
                          shape.sequence - first};
  };
  FillTile(source(at.query, block.first), size, queries);
  const float scale = ScoreScale(shape);
  float output[kPlainSize] = {};
  float largest = -INFINITY;
  float sum = 0;
  for (int64_t from = 0; from <= block.first; from += kPlainRows) {
    __syncthreads();
    FillTile(source(at.key, from), size, keys);
    FillTile(source(at.value, from), size, values);
    __syncthreads();
    float scores[kPlainCols];
    MultiplyRows(size, queries + block.row * (size + 1), keys, block.lane, scores);
    float most = largest;
    PIPELAG_UNROLL
    for (int n = 0; n < kPlainCols; ++n) {
      if (from + block.lane + kLanesPerRow * n > query) scores[n] = -INFINITY;
      most = fmaxf(most, scores[n]);
    }
    most = WarpMax<kLanesPerRow>(most);
    const float shrink = expf((largest - most) * scale);
    largest = most;
    sum *= shrink;
    PIPELAG_UNROLL
    for (int n = 0; n < kPlainCols; ++n) {
      scores[n] = expf((scores[n] - most) * scale);
      sum += scores[n];
    }
    PIPELAG_UNROLL
    for (int n = 0; n < kPlainSize; ++n) output[n] *= shrink;
    ShareRow(scores, block.lane, shared + block.row * kSharedRow);
    AddRowsTimes(size, shared + block.row * kSharedRow, values, block.lane, output);
  }
  sum = WarpSum<kLanesPerRow>(sum);
  if (query >= shape.sequence) return;
  StorePlainRow(size, output, 1 / sum, block.lane,
                attended + (at.first_row + query) * shape.cols() + at.query);
  if (block.lane == 0) log_sums[at.statistics + query] = largest * scale + logf(sum);
}

/// Blocks: tiles of keys of every key head. `shared` holds probabilities, then slopes.
template <class T>
__global__ void __launch_bounds__(kPlainThreads, 2)
    AttentionBackwardKeysPlainKernel(AttentionShape shape, const T* qkv, const float* log_sums,
                                     const T* attended_gradient, const float* row_dots,
                                     T* qkv_gradient) {
  const auto size = static_cast<int>(shape.head_size);
  const int tile = kPlainRows * (size + 1);
  auto* keys = static_cast<float*>(DynamicShared());
  float* values = keys + tile;
  float* queries = values + tile;
  float* gradients = queries + tile;
  const PlainBlock block = OwnRows<MostWork::kFirstTile>(shape, shape.kv_heads);
  float* row = gradients + tile + block.row * kSharedRow;
  const int64_t group = shape.heads / shape.kv_heads;
  const int64_t first_head = block.head * group;
  const HeadPlace own = PlaceOfHead(shape, block.sequence, first_head);
  const int64_t key = block.first + block.row;
  const auto source = [&](const T* matrix, int64_t stride, int64_t column, int64_t first) {
    return PlainSource<T>{matrix + (own.first_row + first) * stride + column, stride,
                          shape.sequence - first};
  };
  FillTile(source(qkv, shape.stride(), own.key, block.first), size, keys);
  FillTile(source(qkv, shape.stride(), own.value, block.first), size, values);
  const float scale = ScoreScale(shape);
  float key_gradient[kPlainSize] = {};
  float value_gradient[kPlainSize] = {};
  for (int64_t head = first_head; head < first_head + group; ++head) {
    const HeadPlace at = PlaceOfHead(shape, block.sequence, head);
    for (int64_t from = block.first; from < shape.sequence; from += kPlainRows) {
      __syncthreads();
      FillTile(source(qkv, shape.stride(), at.query, from), size, queries);
      FillTile(source(attended_gradient, shape.cols(), at.query, from), size, gradients);
      __syncthreads();
      float scores[kPlainCols];
      float slopes[kPlainCols];
      MultiplyRows(size, keys + block.row * (size + 1), queries, block.lane, scores);
      MultiplyRows(size, values + block.row * (size + 1), gradients, block.lane, slopes);
      PIPELAG_UNROLL
      for (int n = 0; n < kPlainCols; ++n) {
        const int64_t query = from + block.lane + kLanesPerRow * n;
        const bool sees = query >= key && query < shape.sequence;
        scores[n] = sees ? expf(scores[n] * scale - log_sums[at.statistics + query]) : 0;
        slopes[n] = sees ? scores[n] * (slopes[n] - row_dots[at.statistics + query]) : 0;
      }
      ShareRow(scores, block.lane, row);
      AddRowsTimes(size, row, gradients, block.lane, value_gradient);
      ShareRow(slopes, block.lane, row);
      AddRowsTimes(size, row, queries, block.lane, key_gradient);
    }
  }
  if (key >= shape.sequence) return;
  T* to = qkv_gradient + (own.first_row + key) * shape.stride();
  StorePlainRow(size, key_gradient, scale, block.lane, to + own.key);
  StorePlainRow(size, value_gradient, 1, block.lane, to + own.value);
}

/// Blocks: tiles of queries of every head.
template <class T>
__global__ void __launch_bounds__(kPlainThreads, 2)
    AttentionBackwardQueriesPlainKernel(AttentionShape shape, const T* qkv, const float* log_sums,
                                        const T* attended_gradient, const float* row_dots,
                                        T* qkv_gradient) {
  const auto size = static_cast<int>(shape.head_size);
  const int tile = kPlainRows * (size + 1);
  auto* queries = static_cast<float*>(DynamicShared());
  float* gradients = queries + tile;
  float* keys = gradients + tile;
  float* values = keys + tile;
  const PlainBlock block = OwnRows<MostWork::kLastTile>(shape, shape.heads);
  float* row = values + tile + block.row * kSharedRow;
  const HeadPlace at = PlaceOfHead(shape, block.sequence, block.head);
  const int64_t query = block.first + block.row;
  const auto source = [&](const T* matrix, int64_t stride, int64_t column, int64_t first) {
    return PlainSource<T>{matrix + (at.first_row + first) * stride + column, stride,
                          shape.sequence - first};
  };
  FillTile(source(qkv, shape.stride(), at.query, block.first), size, queries);
  FillTile(source(attended_gradient, shape.cols(), at.query, block.first), size, gradients);
  const bool inside = query < shape.sequence;
  const float log_sum = inside ? log_sums[at.statistics + query] : 0;
  const float dot = inside ? row_dots[at.statistics + query] : 0;
  const float scale = ScoreScale(shape);
  float query_gradient[kPlainSize] = {};
  for (int64_t from = 0; from <= block.first; from += kPlainRows) {
    __syncthreads();
    FillTile(source(qkv, shape.stride(), at.key, from), size, keys);
    FillTile(source(qkv, shape.stride(), at.value, from), size, values);
    __syncthreads();
    float scores[kPlainCols];
    float slopes[kPlainCols];
    MultiplyRows(size, queries + block.row * (size + 1), keys, block.lane, scores);
    MultiplyRows(size, gradients + block.row * (size + 1), values, block.lane, slopes);
    PIPELAG_UNROLL
    for (int n = 0; n < kPlainCols; ++n) {
      const bool sees = from + block.lane + kLanesPerRow * n <= query && inside;
      slopes[n] = sees ? expf(scores[n] * scale - log_sum) * (slopes[n] - dot) : 0;
    }
    ShareRow(slopes, block.lane, row);
    AddRowsTimes(size, row, keys, block.lane, query_gradient);
  }
  if (!inside) return;
  StorePlainRow(size, query_gradient, scale, block.lane,
                qkv_gradient + (at.first_row + query) * shape.stride() + at.query);
}

}  // namespace pipelag::cuda
