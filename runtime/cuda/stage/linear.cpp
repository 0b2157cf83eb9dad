#include "runtime/cuda/stage/linear.h"

#include <algorithm>
#include <type_traits>

#include "models/error.h"
#include "runtime/cuda/kernels/buffers.h"
#include "runtime/cuda/kernels/elementwise.h"

namespace pipelag::cuda {
namespace {

/// Float is for checks: there GELU is the kernels' own, not a library's approximation.
template <class T>
constexpr bool kMayFuseGelu = std::is_same_v<T, Bfloat16>;

template <class T>
Product<T, T> ForwardProduct(const LinearSize& size, const T* x, const T* w, T* y) {
  return {.m = size.rows,
          .n = size.outputs,
          .k = size.inputs,
          .transpose_b = Transpose::kYes,
          .a = x,
          .lda = size.inputs,
          .b = w,
          .ldb = size.inputs,
          .d = y,
          .ldd = size.stride};
}

template <class T>
Product<T, T> InputProduct(const LinearSize& size, const T* y_gradient, const T* w, T* x_gradient) {
  return {.m = size.rows,
          .n = size.inputs,
          .k = size.outputs,
          .a = y_gradient,
          .lda = size.stride,
          .b = w,
          .ldb = size.inputs,
          .d = x_gradient,
          .ldd = size.inputs};
}

template <class In, class Out>
void MultiplyPlain(const LinearTools& tools, Product<In, Out> product) {
  product.epilogue = Epilogue::kNone;
  CHECK(tools.products.Multiply(tools.stream, product));
}

}  // namespace

int64_t LinearScratch(int64_t rows, int64_t outputs) {
  return std::max(ColumnSumsScratch(rows, outputs), outputs);
}

template <class T>
void LinearForward(const LinearTools& tools, const LinearSize& size, const T* x,
                   const LinearWeights<T>& w, T* y) {
  Product<T, T> product = ForwardProduct(size, x, w.weight, y);
  if (w.bias != nullptr) {
    product.epilogue = Epilogue::kBias;
    product.bias = w.bias_copy;
  }
  if (tools.products.Multiply(tools.stream, product)) return;
  MultiplyPlain(tools, product);
  AddBias(tools.stream, size.rows, size.outputs, size.stride, w.bias, y);
}

template <class T>
void LinearForwardAdd(const LinearTools& tools, const LinearSize& size, const T* x,
                      const LinearWeights<T>& w, const T* residual, T* y) {
  CHECK(size.stride == size.outputs);
  Product<T, T> product = ForwardProduct(size, x, w.weight, y);
  product.beta = 1;
  product.c = residual;
  if (w.bias != nullptr) {
    product.epilogue = Epilogue::kBias;
    product.bias = w.bias_copy;
  }
  if (tools.products.Multiply(tools.stream, product)) return;
  product.beta = 0;
  MultiplyPlain(tools, product);
  AddBiasAndResidual(tools.stream, size.rows, size.outputs, w.bias, residual, y);
}

template <class T>
void LinearForwardGelu(const LinearTools& tools, const LinearSize& size, bool fuse, const T* x,
                       const LinearWeights<T>& w, T* hidden, T* y) {
  CHECK(size.stride == size.outputs);
  Product<T, T> product = ForwardProduct(size, x, w.weight, y);
  product.bias = w.bias_copy;
  product.aux = hidden;
  product.epilogue = w.bias != nullptr ? Epilogue::kBiasGelu : Epilogue::kGelu;
  if (kMayFuseGelu<T> && fuse && tools.products.Multiply(tools.stream, product)) return;
  MultiplyPlain(tools, ForwardProduct(size, x, w.weight, hidden));
  BiasGeluForward(tools.stream, size.rows, size.outputs, w.bias, hidden, y);
}

template <class T>
void LinearBackwardInput(const LinearTools& tools, const LinearSize& size, float alpha,
                         const T* y_gradient, const T* w, float beta, T* x_gradient) {
  Product<T, T> product = InputProduct(size, y_gradient, w, x_gradient);
  product.alpha = alpha;
  product.beta = beta;
  product.c = x_gradient;
  MultiplyPlain(tools, product);
}

template <class T>
void LinearBackwardGelu(const LinearTools& tools, const LinearSize& size, const T* y_gradient,
                        const T* w, const T* hidden, T* hidden_gradient) {
  Product<T, T> product = InputProduct(size, y_gradient, w, hidden_gradient);
  product.epilogue = Epilogue::kGeluGradient;
  product.aux = const_cast<T*>(hidden);
  if (kMayFuseGelu<T> && tools.products.Multiply(tools.stream, product)) return;
  MultiplyPlain(tools, product);
  GeluBackward(tools.stream, size.rows, size.inputs, hidden, hidden_gradient);
}

template <class T>
void LinearBackwardWeight(const LinearTools& tools, const LinearSize& size, float alpha,
                          const T* y_gradient, const T* x, float* w_gradient,
                          float* bias_gradient) {
  Product<T, float> product = {.m = size.outputs,
                               .n = size.inputs,
                               .k = size.rows,
                               .transpose_a = Transpose::kYes,
                               .a = y_gradient,
                               .lda = size.stride,
                               .b = x,
                               .ldb = size.inputs,
                               .alpha = alpha,
                               .beta = 1,
                               .c = w_gradient,
                               .d = w_gradient,
                               .ldd = size.inputs};
  if (bias_gradient == nullptr) return MultiplyPlain(tools, product);
  CHECK(alpha == 1);
  product.epilogue = Epilogue::kRowSums;
  product.row_sums = tools.sums;
  if (tools.products.Multiply(tools.stream, product)) {
    return AddBuffer(tools.stream, size.outputs, tools.sums, bias_gradient);
  }
  MultiplyPlain(tools, product);
  AddColumnSums(tools.stream, size.rows, size.outputs, size.stride, y_gradient, tools.sums,
                bias_gradient);
}

// NOLINTBEGIN(bugprone-macro-parentheses): a type takes none.
#define PIPELAG_LINEAR(T)                                                                     \
  template void LinearForward(const LinearTools&, const LinearSize&, const T*,                \
                              const LinearWeights<T>&, T*);                                   \
  template void LinearForwardAdd(const LinearTools&, const LinearSize&, const T*,             \
                                 const LinearWeights<T>&, const T*, T*);                      \
  template void LinearForwardGelu(const LinearTools&, const LinearSize&, bool, const T*,      \
                                  const LinearWeights<T>&, T*, T*);                           \
  template void LinearBackwardInput(const LinearTools&, const LinearSize&, float, const T*,   \
                                    const T*, float, T*);                                     \
  template void LinearBackwardGelu(const LinearTools&, const LinearSize&, const T*, const T*, \
                                   const T*, T*);                                             \
  template void LinearBackwardWeight(const LinearTools&, const LinearSize&, float, const T*,  \
                                     const T*, float*, float*);

PIPELAG_LINEAR(float)
PIPELAG_LINEAR(Bfloat16)

#undef PIPELAG_LINEAR
// NOLINTEND(bugprone-macro-parentheses)

}  // namespace pipelag::cuda
