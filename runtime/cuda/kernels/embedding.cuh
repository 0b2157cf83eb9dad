// Kernels of embedding.h. The stable radix sort of positions by token works in chunks, a warp each:
// lanes with the same digit find each other, so ranks depend on positions only.
#pragma once

#include "runtime/cuda/kernels/warp.cuh"
#include "runtime/data/token.h"

namespace pipelag::cuda {

constexpr int kEmbedThreads = 128;

/// Blocks: (positions, packs of a row).
template <class T, int kWidth>
__global__ void EmbedForwardKernel(const Token* tokens, int64_t sequence, int64_t cols,
                                   const float* token_table, const float* position_table, T* x) {
  const int64_t i = blockIdx.x;
  const int64_t j = (static_cast<int64_t>(blockIdx.y) * kEmbedThreads + threadIdx.x) * kWidth;
  if (j >= cols) return;
  float v[kWidth];
  Load(token_table + tokens[i] * cols + j, v);
  if (position_table != nullptr) {
    float p[kWidth];
    Load(position_table + i % sequence * cols + j, p);
    PIPELAG_UNROLL
    for (int k = 0; k < kWidth; ++k) v[k] += p[k];
  }
  Store(v, x + i * cols + j);
}

constexpr int kDigits = 256;
constexpr int64_t kSortChunk = 1024;
static_assert(kMostTokens <= kDigits * kDigits);

/// What a warp sorts in one pass: positions in the order of the pass before (null: as they are).
struct SortInput {
  const Token* tokens;
  const uint32_t* order;
  int64_t positions;
  int shift;
};

/// For each number of this warp's chunk in order: place(position, digit, rank among the numbers
/// with its digit in the chunk). `counts` (kDigits, shared) ends as the chunk's histogram.
template <class Place>
__device__ __forceinline__ void ForChunk(const SortInput& input, uint32_t* counts, Place place) {
  const int lane = static_cast<int>(threadIdx.x);
  for (int d = lane; d < kDigits; d += kWarp) counts[d] = 0;
  __syncwarp();
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kSortChunk;
  const int64_t last = first + kSortChunk < input.positions ? first + kSortChunk : input.positions;
  for (int64_t base = first; base < last; base += kWarp) {
    const int64_t i = base + lane;
    const bool inside = i < last;
    uint32_t position = 0;
    uint32_t digit = kDigits;
    if (inside) {
      position = input.order == nullptr ? static_cast<uint32_t>(i) : input.order[i];
      digit = (static_cast<uint32_t>(input.tokens[position]) >> input.shift) & (kDigits - 1u);
    }
    const uint32_t peers = MatchAny(digit);
    const int before = CountBits(peers & ((1u << lane) - 1u));
    const uint32_t rank = inside ? counts[digit] + static_cast<uint32_t>(before) : 0;
    __syncwarp();
    if (inside && before == 0) counts[digit] += static_cast<uint32_t>(CountBits(peers));
    __syncwarp();
    if (inside) place(position, digit, rank);
  }
}

/// counts (chunks, kDigits).
static __global__ void __launch_bounds__(kWarp)
    CountDigitsKernel(SortInput input, uint32_t* counts) {
  __shared__ uint32_t own[kDigits];
  ForChunk(input, own, [](uint32_t /*position*/, uint32_t /*digit*/, uint32_t /*rank*/) {});
  for (int d = static_cast<int>(threadIdx.x); d < kDigits; d += kWarp) {
    counts[static_cast<int64_t>(blockIdx.x) * kDigits + d] = own[d];
  }
}

/// In place, in one block: where the numbers of each chunk and digit begin, digits first.
static __global__ void __launch_bounds__(kDigits)
    PlaceDigitsKernel(int64_t chunks, uint32_t* counts) {
  __shared__ uint32_t totals[2][kDigits];
  const int digit = static_cast<int>(threadIdx.x);
  uint32_t total = 0;
  PIPELAG_UNROLL_BY_4
  for (int64_t chunk = 0; chunk < chunks; ++chunk) total += counts[chunk * kDigits + digit];
  totals[0][digit] = total;
  int from = 0;
  for (int distance = 1; distance < kDigits; distance *= 2) {
    __syncthreads();
    uint32_t sum = totals[from][digit];
    if (digit >= distance) sum += totals[from][digit - distance];
    from = 1 - from;
    totals[from][digit] = sum;
  }
  uint32_t next = totals[from][digit] - total;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const uint32_t count = counts[chunk * kDigits + digit];
    counts[chunk * kDigits + digit] = next;
    next += count;
  }
}

static __global__ void __launch_bounds__(kWarp)
    ScatterKernel(SortInput input, const uint32_t* places, uint32_t* order) {
  __shared__ uint32_t own[kDigits];
  const uint32_t* chunk_places = places + static_cast<int64_t>(blockIdx.x) * kDigits;
  ForChunk(input, own, [&](uint32_t position, uint32_t digit, uint32_t rank) {
    order[chunk_places[digit] + rank] = position;
  });
}

constexpr int kRowsThreads = 64;
constexpr uint32_t kNoRow = 0xffffffffu;

/// Blocks: (sorted places, packs of a row). The block at the first place of a token adds that
/// token's rows in their order; the others end. Frequent tokens have thousands of rows: their
/// positions are looked up together, and many rows are under way at a time.
template <class T, int kWidth>
__global__ void __launch_bounds__(kRowsThreads, 10)
    AddRowsKernel(const Token* tokens, const uint32_t* order, int64_t positions, int64_t cols,
                  const T* x_gradient, float* token_gradient) {
  __shared__ uint32_t rows[kRowsThreads];
  constexpr int kAtOnce = 16;
  const int64_t first = blockIdx.x;
  const Token token = tokens[order[first]];
  if (first > 0 && tokens[order[first - 1]] == token) return;
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t j = (static_cast<int64_t>(blockIdx.y) * kRowsThreads + thread) * kWidth;
  const bool inside = j < cols;
  float sum[kWidth] = {};
  if (inside) Load(token_gradient + token * cols + j, sum);
  bool more = true;
  for (int64_t base = first; more; base += kRowsThreads) {
    uint32_t row = kNoRow;
    if (base + thread < positions) {
      const uint32_t position = order[base + thread];
      if (tokens[position] == token) row = position;
    }
    __syncthreads();  // some may still read those before
    rows[thread] = row;
    __syncthreads();
    more = rows[kRowsThreads - 1] != kNoRow;
    int n = 0;
    for (; inside && n < kRowsThreads && rows[n + kAtOnce - 1] != kNoRow; n += kAtOnce) {
      float v[kAtOnce][kWidth];
      PIPELAG_UNROLL
      for (int a = 0; a < kAtOnce; ++a) Load(x_gradient + rows[n + a] * cols + j, v[a]);
      PIPELAG_UNROLL
      for (int a = 0; a < kAtOnce; ++a) {
        PIPELAG_UNROLL
        for (int k = 0; k < kWidth; ++k) sum[k] += v[a][k];
      }
    }
    for (; inside && n < kRowsThreads && rows[n] != kNoRow; ++n) {
      float v[kWidth];
      Load(x_gradient + rows[n] * cols + j, v);
      PIPELAG_UNROLL
      for (int k = 0; k < kWidth; ++k) sum[k] += v[k];
    }
  }
  if (inside) Store(sum, token_gradient + token * cols + j);
}

/// Blocks: (positions of a sequence, packs of a row).
template <class T, int kWidth>
__global__ void AddPositionsKernel(int64_t batch, int64_t sequence, int64_t cols,
                                   const T* x_gradient, float* position_gradient) {
  const int64_t t = blockIdx.x;
  const int64_t j = (static_cast<int64_t>(blockIdx.y) * kEmbedThreads + threadIdx.x) * kWidth;
  if (j >= cols) return;
  float sum[kWidth];
  Load(position_gradient + t * cols + j, sum);
  PIPELAG_UNROLL_BY_4
  for (int64_t b = 0; b < batch; ++b) {
    float v[kWidth];
    Load(x_gradient + (b * sequence + t) * cols + j, v);
    PIPELAG_UNROLL
    for (int k = 0; k < kWidth; ++k) sum[k] += v[k];
  }
  Store(sum, position_gradient + t * cols + j);
}

}  // namespace pipelag::cuda
