// The launches of embedding.cuh's kernels.
#include "runtime/cuda/kernels/embedding.cuh"
#include "runtime/cuda/kernels/embedding.h"

namespace pipelag::cuda {
namespace {

/// Parts of the scratch of EmbedBackward, in numbers of 32 bits.
struct EmbedScratch {
  explicit EmbedScratch(int64_t positions)
      : once(0),
        twice(positions),
        counts(2 * positions),
        size(counts + Blocks(positions, kSortChunk) * kDigits) {}
  int64_t once;    ///< positions by the low digit of their tokens
  int64_t twice;   ///< positions by token
  int64_t counts;  ///< of each chunk
  int64_t size;
};

void SortPass(Stream stream, const SortInput& input, uint32_t* counts, uint32_t* order) {
  const int64_t chunks = Blocks(input.positions, kSortChunk);
  Launch(stream, {chunks}, kWarp, 0, CountDigitsKernel, input, counts);
  Launch(stream, {1}, kDigits, 0, PlaceDigitsKernel, chunks, counts);
  Launch(stream, {chunks}, kWarp, 0, ScatterKernel, input, counts, order);
}

}  // namespace

template <class T>
void EmbedForward(Stream stream, const Token* tokens, int64_t batch, int64_t sequence, int64_t cols,
                  const float* token_table, const float* position_table, T* x) {
  WithWidth<T>(
      [&]<int kWidth>() {
        Launch(stream, {batch * sequence, Blocks(cols, kEmbedThreads * kWidth)}, kEmbedThreads, 0,
               EmbedForwardKernel<T, kWidth>, tokens, sequence, cols, token_table, position_table,
               x);
      },
      cols);
}

size_t EmbedScratchBytes(int64_t positions) {
  return static_cast<size_t>(EmbedScratch(positions).size) * sizeof(uint32_t);
}

template <class T>
void EmbedBackward(Stream stream, const Token* tokens, int64_t batch, int64_t sequence,
                   int64_t cols, const T* x_gradient, void* scratch, float* token_gradient,
                   float* position_gradient) {
  const int64_t positions = batch * sequence;
  CHECK(positions <= INT32_MAX);
  const EmbedScratch at(positions);
  auto* base = static_cast<uint32_t*>(scratch);
  SortPass(stream, {tokens, nullptr, positions, 0}, base + at.counts, base + at.once);
  SortPass(stream, {tokens, base + at.once, positions, 8}, base + at.counts, base + at.twice);
  WithWidth<T>(
      [&]<int kWidth>() {
        Launch(stream, {positions, Blocks(cols, kRowsThreads * kWidth)}, kRowsThreads, 0,
               AddRowsKernel<T, kWidth>, tokens, base + at.twice, positions, cols, x_gradient,
               token_gradient);
        if (position_gradient == nullptr) return;
        Launch(stream, {sequence, Blocks(cols, kEmbedThreads * kWidth)}, kEmbedThreads, 0,
               AddPositionsKernel<T, kWidth>, batch, sequence, cols, x_gradient, position_gradient);
      },
      cols);
}

// NOLINTBEGIN(bugprone-macro-parentheses): a type takes none.
#define PIPELAG_EMBEDDING(T)                                                                    \
  template void EmbedForward(Stream, const Token*, int64_t, int64_t, int64_t, const float*,     \
                             const float*, T*);                                                 \
  template void EmbedBackward(Stream, const Token*, int64_t, int64_t, int64_t, const T*, void*, \
                              float*, float*);
// NOLINTEND(bugprone-macro-parentheses)

PIPELAG_EMBEDDING(float)
PIPELAG_EMBEDDING(Bfloat16)
#undef PIPELAG_EMBEDDING

}  // namespace pipelag::cuda
