// The launches of cross_entropy.cuh's kernels.
#include "runtime/cuda/kernels/cross_entropy.cuh"
#include "runtime/cuda/kernels/cross_entropy.h"

namespace pipelag::cuda {

template <class T>
void CrossEntropyForward(Stream stream, int64_t rows, int64_t cols, int64_t stride,
                         const Token* targets, const T* logits, float* log_sums, double* row_losses,
                         double* loss) {
  CHECK(stride >= cols);
  Launch(stream, {rows}, kRowThreads, 0, CrossEntropyForwardKernel<T>, cols, stride, targets,
         logits, log_sums, row_losses);
  Launch(stream, {1}, kRowThreads, 0, AddLossesKernel, rows, row_losses, loss);
}

template <class T>
void CrossEntropyBackward(Stream stream, int64_t rows, int64_t cols, int64_t stride,
                          const Token* targets, const T* logits, const float* log_sums, float scale,
                          T* logit_gradient) {
  CHECK(stride >= cols);
  Launch(stream, {rows}, kRowThreads, 0, CrossEntropyBackwardKernel<T>, cols, stride, targets,
         logits, log_sums, scale, logit_gradient);
}

// NOLINTBEGIN(bugprone-macro-parentheses): a type takes none.
#define PIPELAG_CROSS_ENTROPY(T)                                                                \
  template void CrossEntropyForward(Stream, int64_t, int64_t, int64_t, const Token*, const T*,  \
                                    float*, double*, double*);                                  \
  template void CrossEntropyBackward(Stream, int64_t, int64_t, int64_t, const Token*, const T*, \
                                     const float*, float, T*);
// NOLINTEND(bugprone-macro-parentheses)

PIPELAG_CROSS_ENTROPY(float)
PIPELAG_CROSS_ENTROPY(Bfloat16)
#undef PIPELAG_CROSS_ENTROPY

}  // namespace pipelag::cuda
