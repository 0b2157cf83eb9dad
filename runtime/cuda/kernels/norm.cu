// The launches of norm.cuh's kernels.
#include "runtime/cuda/kernels/norm.cuh"
#include "runtime/cuda/kernels/norm.h"

namespace pipelag::cuda {
namespace {

/// Calls body.operator()<kRms>().
template <class Body>
void WithKind(NormChoice kind, Body body) {
  if (kind == NormChoice::kRms) {
    body.template operator()<true>();
  } else {
    body.template operator()<false>();
  }
}

}  // namespace

template <class T>
void NormForward(Stream stream, NormChoice kind, int64_t rows, int64_t cols, const T* x,
                 const float* gain, const float* shift, float* mean, float* inverse_deviation,
                 T* y) {
  WithKind(kind, [&]<bool kRms>() {
    WithWidth<T>(
        [&]<int kWidth>() {
          Launch(stream, {Blocks(rows, kNormWarps)}, kNormWarps * kWarp, 0,
                 NormForwardKernel<T, kWidth, kRms>, rows, cols, x, gain, shift, mean,
                 inverse_deviation, y);
        },
        cols);
  });
}

template <class T>
void NormBackwardInput(Stream stream, NormChoice kind, int64_t rows, int64_t cols,
                       const T* y_gradient, const T* x, const float* gain, const float* mean,
                       const float* inverse_deviation, const T* residual_gradient, T* x_gradient) {
  WithKind(kind, [&]<bool kRms>() {
    WithWidth<T>(
        [&]<int kWidth>() {
          Launch(stream, {Blocks(rows, kNormWarps)}, kNormWarps * kWarp, 0,
                 NormBackwardInputKernel<T, kWidth, kRms>, rows, cols, y_gradient, x, gain, mean,
                 inverse_deviation, residual_gradient, x_gradient);
        },
        cols);
  });
}

int64_t NormScratch(int64_t rows, int64_t cols) { return 2 * Chunks(rows) * cols; }

template <class T>
void NormBackwardWeight(Stream stream, NormChoice kind, int64_t rows, int64_t cols,
                        const T* y_gradient, const T* x, const float* mean,
                        const float* inverse_deviation, float* scratch, float* gain_gradient,
                        float* shift_gradient) {
  WithWidth<T>(
      [&]<int kWidth>() {
        if (kind == NormChoice::kRms) {
          SumColumns<kWidth>(
              stream, rows, cols,
              NormWeightTerms<T, true, false>{cols, y_gradient, x, nullptr, inverse_deviation},
              scratch, {gain_gradient});
        } else if (shift_gradient == nullptr) {
          SumColumns<kWidth>(
              stream, rows, cols,
              NormWeightTerms<T, false, false>{cols, y_gradient, x, mean, inverse_deviation},
              scratch, {gain_gradient});
        } else {
          SumColumns<kWidth>(
              stream, rows, cols,
              NormWeightTerms<T, false, true>{cols, y_gradient, x, mean, inverse_deviation},
              scratch, {gain_gradient, shift_gradient});
        }
      },
      cols);
}

// NOLINTBEGIN(bugprone-macro-parentheses): a type takes none.
#define PIPELAG_NORM(T)                                                                      \
  template void NormForward(Stream, NormChoice, int64_t, int64_t, const T*, const float*,    \
                            const float*, float*, float*, T*);                               \
  template void NormBackwardInput(Stream, NormChoice, int64_t, int64_t, const T*, const T*,  \
                                  const float*, const float*, const float*, const T*, T*);   \
  template void NormBackwardWeight(Stream, NormChoice, int64_t, int64_t, const T*, const T*, \
                                   const float*, const float*, float*, float*, float*);
// NOLINTEND(bugprone-macro-parentheses)

PIPELAG_NORM(float)
PIPELAG_NORM(Bfloat16)
#undef PIPELAG_NORM

}  // namespace pipelag::cuda
