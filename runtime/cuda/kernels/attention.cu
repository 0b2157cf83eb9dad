// The launches of attention's kernels, and which of them a type and a size of heads ask for.
#include <type_traits>

#include "runtime/cuda/kernels/attention.h"
#include "runtime/cuda/kernels/attention_plain.cuh"
#include "runtime/cuda/kernels/attention_tensor.cuh"
#include "runtime/cuda/kernels/attention_tensor_backward.cuh"

namespace pipelag::cuda {
namespace {

void CheckShape(const AttentionShape& shape) {
  CHECK(shape.head_size >= 1 && shape.head_size <= kLargestHead);
  CHECK(shape.kv_heads >= 1 && shape.heads % shape.kv_heads == 0);
}

/// Whether the tiles of tensor cores fit: whole packs of bf16.
template <class T>
bool FitsTensorCores(const AttentionShape& shape) {
  return std::is_same_v<T, Bfloat16> && shape.head_size % kChunk == 0;
}

template <class Cut, class... Parameters, class... Arguments>
void LaunchTiles(Stream stream, const AttentionShape& shape, int64_t heads, int own_tiles,
                 int streamed_tiles, void (*kernel)(Parameters...), const Arguments&... arguments) {
  const int bytes = own_tiles * Cut::kOwnBytes + streamed_tiles * Cut::kStreamBytes;
  Launch(stream, {shape.batch * heads * Blocks(shape.sequence, Cut::kOwn)}, kTileThreads,
         static_cast<size_t>(bytes), kernel, shape, arguments...);
}

template <class Cut>
void ForwardTensor(Stream stream, const AttentionShape& shape, const Bfloat16* qkv,
                   Bfloat16* attended, float* log_sums) {
  LaunchTiles<Cut>(stream, shape, shape.heads, 1, 4, AttentionForwardTensorKernel<Cut>, qkv,
                   attended, log_sums);
}

template <class KeysCut, class QueriesCut>
void BackwardTensor(Stream stream, const AttentionShape& shape, const Bfloat16* qkv,
                    const float* log_sums, const Bfloat16* attended_gradient, const float* row_dots,
                    Bfloat16* qkv_gradient) {
  LaunchTiles<KeysCut>(stream, shape, shape.kv_heads, 2, 4,
                       AttentionBackwardKeysTensorKernel<KeysCut>, qkv, log_sums, attended_gradient,
                       row_dots, qkv_gradient);
  LaunchTiles<QueriesCut>(stream, shape, shape.heads, 2, 4,
                          AttentionBackwardQueriesTensorKernel<QueriesCut>, qkv, log_sums,
                          attended_gradient, row_dots, qkv_gradient);
}

template <class T, int kWidth, int kLanes>
void RowDots(Stream stream, const AttentionShape& shape, const T* attended,
             const T* attended_gradient, float* row_dots) {
  Launch(stream, {shape.rows()}, kDotWarps * kWarp, 0, RowDotsKernel<T, kWidth, kLanes>, shape,
         attended, attended_gradient, row_dots);
}

}  // namespace

template <class T>
void AttentionForward(Stream stream, const AttentionShape& shape, const T* qkv, T* attended,
                      float* log_sums) {
  CheckShape(shape);
  if constexpr (std::is_same_v<T, Bfloat16>) {
    if (FitsTensorCores<T>(shape)) {
      if (shape.head_size <= 64) {
        ForwardTensor<TileCut<64, 2, 64>>(stream, shape, qkv, attended, log_sums);
      } else {
        ForwardTensor<TileCut<128, 2, 32>>(stream, shape, qkv, attended, log_sums);
      }
      return;
    }
  }
  Launch(stream, {shape.batch * shape.heads * Blocks(shape.sequence, kPlainRows)}, kPlainThreads,
         PlainSharedBytes(shape.head_size, 3, 1), AttentionForwardPlainKernel<T>, shape, qkv,
         attended, log_sums);
}

template <class T>
void AttentionBackward(Stream stream, const AttentionShape& shape, const T* qkv, const T* attended,
                       const float* log_sums, const T* attended_gradient, float* row_dots,
                       T* qkv_gradient) {
  CheckShape(shape);
  if (shape.head_size % kPack<T> == 0) {
    // As many lanes to a head as hold its packs at once.
    if (shape.head_size <= 8 * kPack<T>) {
      RowDots<T, kPack<T>, 8>(stream, shape, attended, attended_gradient, row_dots);
    } else {
      RowDots<T, kPack<T>, 16>(stream, shape, attended, attended_gradient, row_dots);
    }
  } else {
    RowDots<T, 1, 16>(stream, shape, attended, attended_gradient, row_dots);
  }
  if constexpr (std::is_same_v<T, Bfloat16>) {
    if (FitsTensorCores<T>(shape)) {
      if (shape.head_size <= 64) {
        BackwardTensor<TileCut<64, 2, 32>, TileCut<64, 2, 32>>(
            stream, shape, qkv, log_sums, attended_gradient, row_dots, qkv_gradient);
      } else {
        BackwardTensor<TileCut<128, 1, 32>, TileCut<128, 1, 32>>(
            stream, shape, qkv, log_sums, attended_gradient, row_dots, qkv_gradient);
      }
      return;
    }
  }
  const int64_t tiles = Blocks(shape.sequence, kPlainRows);
  const size_t shared = PlainSharedBytes(shape.head_size, 4, 1);
  Launch(stream, {shape.batch * shape.kv_heads * tiles}, kPlainThreads, shared,
         AttentionBackwardKeysPlainKernel<T>, shape, qkv, log_sums, attended_gradient, row_dots,
         qkv_gradient);
  Launch(stream, {shape.batch * shape.heads * tiles}, kPlainThreads, shared,
         AttentionBackwardQueriesPlainKernel<T>, shape, qkv, log_sums, attended_gradient, row_dots,
         qkv_gradient);
}

// NOLINTBEGIN(bugprone-macro-parentheses): a type takes none.
#define PIPELAG_ATTENTION(T)                                                                       \
  template void AttentionForward(Stream, const AttentionShape&, const T*, T*, float*);             \
  template void AttentionBackward(Stream, const AttentionShape&, const T*, const T*, const float*, \
                                  const T*, float*, T*);
// NOLINTEND(bugprone-macro-parentheses)

PIPELAG_ATTENTION(float)
PIPELAG_ATTENTION(Bfloat16)
#undef PIPELAG_ATTENTION

}  // namespace pipelag::cuda
