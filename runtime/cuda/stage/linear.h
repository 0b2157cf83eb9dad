// Linear layers on a device: products with biases, residuals and GELU, in one pass where the device
// has it, else product by product and kernel by kernel. Knows pointers and sizes only.
#pragma once

#include <cstdint>

#include "runtime/cuda/products.h"

namespace pipelag::cuda {

/// x is (rows, inputs), y (rows, outputs) with `stride` between its rows, w (outputs, inputs).
struct LinearSize {
  int64_t rows = 0;
  int64_t inputs = 0;
  int64_t outputs = 0;
  int64_t stride = 0;
};

/// T: float or Bfloat16.
template <class T>
struct LinearWeights {
  const T* weight = nullptr;
  const float* bias = nullptr;  ///< the master; null: none
  const T* bias_copy = nullptr;
};

/// `sums` is scratch for LinearScratch floats.
struct LinearTools {
  Products& products;
  Stream stream;
  float* sums;
};
int64_t LinearScratch(int64_t rows, int64_t outputs);

/// y = x · wᵀ + bias.
template <class T>
void LinearForward(const LinearTools& tools, const LinearSize& size, const T* x,
                   const LinearWeights<T>& w, T* y);

/// y = x · wᵀ + bias + residual; stride is `outputs`.
template <class T>
void LinearForwardAdd(const LinearTools& tools, const LinearSize& size, const T* x,
                      const LinearWeights<T>& w, const T* residual, T* y);

/// y = gelu(hidden), hidden = x · wᵀ + bias; stride is `outputs`. In float, or not `fuse`: y is to
/// the last bit what BiasGeluForward makes of `hidden` as rounded to T.
template <class T>
void LinearForwardGelu(const LinearTools& tools, const LinearSize& size, bool fuse, const T* x,
                       const LinearWeights<T>& w, T* hidden, T* y);

/// x_gradient = alpha · y_gradient · w + beta · x_gradient.
template <class T>
void LinearBackwardInput(const LinearTools& tools, const LinearSize& size, float alpha,
                         const T* y_gradient, const T* w, float beta, T* x_gradient);

/// hidden_gradient = (y_gradient · w) ⊙ gelu'(hidden).
template <class T>
void LinearBackwardGelu(const LinearTools& tools, const LinearSize& size, const T* y_gradient,
                        const T* w, const T* hidden, T* hidden_gradient);

/// w_gradient += alpha · y_gradientᵀ · x; bias_gradient (null: none) += column sums of y_gradient,
/// which ask for an alpha of 1.
template <class T>
void LinearBackwardWeight(const LinearTools& tools, const LinearSize& size, float alpha,
                          const T* y_gradient, const T* x, float* w_gradient, float* bias_gradient);

}  // namespace pipelag::cuda
