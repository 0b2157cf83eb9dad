// The launches of elementwise.cuh's kernels.
#include "runtime/cuda/kernels/elementwise.cuh"
#include "runtime/cuda/kernels/elementwise.h"

namespace pipelag::cuda {
namespace {

/// Launches a thread for each pack of (rows, cols).
template <int kWidth, class... Parameters, class... Arguments>
void LaunchPacks(Stream stream, int64_t rows, int64_t cols, void (*kernel)(Parameters...),
                 const Arguments&... arguments) {
  const int64_t packs = rows * cols / kWidth;
  CHECK(packs <= INT32_MAX);
  Launch(stream, {Blocks(packs, kElementThreads)}, kElementThreads, 0, kernel, arguments...);
}

}  // namespace

template <class T>
void AddBias(Stream stream, int64_t rows, int64_t cols, int64_t stride, const float* bias, T* x) {
  if (bias == nullptr) return;
  WithWidth<T>(
      [&]<int kWidth>() {
        LaunchPacks<kWidth>(stream, rows, cols, AddBiasKernel<T, kWidth>, rows, cols, stride, bias,
                            x);
      },
      cols, stride);
}

template <class T>
void AddBiasAndResidual(Stream stream, int64_t rows, int64_t cols, const float* bias,
                        const T* residual, T* x) {
  WithWidth<T>(
      [&]<int kWidth>() {
        LaunchPacks<kWidth>(stream, rows, cols, AddBiasAndResidualKernel<T, kWidth>, rows, cols,
                            bias, residual, x);
      },
      cols);
}

int64_t ColumnSumsScratch(int64_t rows, int64_t cols) { return Chunks(rows) * cols; }

template <class T>
void AddColumnSums(Stream stream, int64_t rows, int64_t cols, int64_t stride, const T* x,
                   float* scratch, float* sums) {
  if (sums == nullptr) return;
  WithWidth<T>(
      [&]<int kWidth>() {
        SumColumns<kWidth>(stream, rows, cols, BiasTerms<T>{stride, x}, scratch, {sums});
      },
      cols, stride);
}

template <class T>
void BiasGeluForward(Stream stream, int64_t rows, int64_t cols, const float* bias, T* x, T* y) {
  WithWidth<T>(
      [&]<int kWidth>() {
        LaunchPacks<kWidth>(stream, rows, cols,
                            bias == nullptr ? GeluForwardKernel<T, kWidth, false>
                                            : GeluForwardKernel<T, kWidth, true>,
                            rows, cols, bias, x, y);
      },
      cols);
}

template <class T>
void GeluBackward(Stream stream, int64_t rows, int64_t cols, const T* x, T* y_gradient) {
  WithWidth<T>(
      [&]<int kWidth>() {
        LaunchPacks<kWidth>(stream, rows, cols, GeluBackwardKernel<T, kWidth>, rows, cols, x,
                            y_gradient);
      },
      cols);
}

template <class T>
void SwiGluForward(Stream stream, int64_t rows, int64_t cols, const T* gate_and_up, T* y) {
  WithWidth<T>(
      [&]<int kWidth>() {
        LaunchPacks<kWidth>(stream, rows, cols, SwiGluForwardKernel<T, kWidth>, rows, cols,
                            gate_and_up, y);
      },
      cols);
}

template <class T>
void SwiGluBackward(Stream stream, int64_t rows, int64_t cols, const T* gate_and_up,
                    const T* y_gradient, T* gradient) {
  WithWidth<T>(
      [&]<int kWidth>() {
        LaunchPacks<kWidth>(stream, rows, cols, SwiGluBackwardKernel<T, kWidth>, rows, cols,
                            gate_and_up, y_gradient, gradient);
      },
      cols);
}

template <class T>
void Rotate(Stream stream, int64_t rows, int64_t sequence, int64_t heads, int64_t head_size,
            int64_t stride, float direction, const float* cosines, const float* sines, T* qkv) {
  CHECK(head_size % 2 == 0);
  const int64_t half = head_size / 2;
  WithWidth<T>(
      [&]<int kWidth>() {
        LaunchPacks<kWidth>(stream, rows, heads * half, RotateKernel<T, kWidth>, rows, sequence,
                            heads, half, stride, direction, cosines, sines, qkv);
      },
      half, stride);
}

// NOLINTBEGIN(bugprone-macro-parentheses): a type takes none.
#define PIPELAG_ELEMENTWISE(T)                                                                   \
  template void AddBias(Stream, int64_t, int64_t, int64_t, const float*, T*);                    \
  template void AddBiasAndResidual(Stream, int64_t, int64_t, const float*, const T*, T*);        \
  template void AddColumnSums(Stream, int64_t, int64_t, int64_t, const T*, float*, float*);      \
  template void BiasGeluForward(Stream, int64_t, int64_t, const float*, T*, T*);                 \
  template void GeluBackward(Stream, int64_t, int64_t, const T*, T*);                            \
  template void SwiGluForward(Stream, int64_t, int64_t, const T*, T*);                           \
  template void SwiGluBackward(Stream, int64_t, int64_t, const T*, const T*, T*);                \
  template void Rotate(Stream, int64_t, int64_t, int64_t, int64_t, int64_t, float, const float*, \
                       const float*, T*);
// NOLINTEND(bugprone-macro-parentheses)

PIPELAG_ELEMENTWISE(float)
PIPELAG_ELEMENTWISE(Bfloat16)
#undef PIPELAG_ELEMENTWISE

}  // namespace pipelag::cuda
