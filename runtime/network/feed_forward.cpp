// Both kinds of MLP as products and elementwise passes.
#include "runtime/network/feed_forward.h"

#include "runtime/network/kernels.h"
#include "runtime/network/linear.h"

namespace pipelag {
namespace {

template <class T>
T* Bias(T* buffer, int64_t offset) {
  return offset < 0 ? nullptr : buffer + offset;
}

}  // namespace

template <class Real>
FeedForward<Real>::FeedForward(const NetworkShape& shape, int64_t rows, Products<Real>& products)
    : products_(&products),
      gated_(shape.mlp == MlpChoice::kSwiGlu),
      rows_(rows),
      cols_(shape.hidden),
      inner_(shape.inner_size()),
      activated_gradient_(gated_ ? static_cast<size_t>(rows * inner_) : 0) {}

template <class Real>
void FeedForward<Real>::Forward(const Real* weights, const FeedForwardTensors& at, const Real* x,
                                Real* hidden, Real* activated) const {
  if (!gated_) {
    LinearForward(*products_, rows_, cols_, inner_, x, weights + at.up, hidden);
    BiasGeluForward(rows_, inner_, Bias(weights, at.up_bias), hidden, activated);
    return;
  }
  LinearForward(*products_, rows_, cols_, inner_, x, weights + at.gate, hidden, 2 * inner_);
  LinearForward(*products_, rows_, cols_, inner_, x, weights + at.up, hidden + inner_, 2 * inner_);
  for (int64_t i = 0; at.up_bias >= 0 && i < rows_; ++i) {
    AddBias(1, inner_, weights + at.gate_bias, hidden + i * 2 * inner_);
    AddBias(1, inner_, weights + at.up_bias, hidden + i * 2 * inner_ + inner_);
  }
  SwiGluForward(rows_, inner_, hidden, activated);
}

template <class Real>
void FeedForward<Real>::Activate(const Real* hidden, Real* activated) const {
  if (gated_) return SwiGluForward(rows_, inner_, hidden, activated);
  GeluForward(rows_, inner_, hidden, activated);
}

template <class Real>
void FeedForward<Real>::Down(const Real* weights, const FeedForwardTensors& at,
                             const Real* activated, Real* y) const {
  LinearForward(*products_, rows_, inner_, cols_, activated, weights + at.down, y);
}

template <class Real>
void FeedForward<Real>::Backward(const Real* weights, const FeedForwardTensors& at, const Real* x,
                                 const Real* hidden, const Real* activated, const Real* y_gradient,
                                 Real* hidden_gradient, Real* x_gradient, Real* gradients) {
  DownBackwardWeight(at, activated, y_gradient, gradients);
  if (gated_) {
    BackwardInput(weights, at, hidden, y_gradient, hidden_gradient, x_gradient);
    UpBackwardWeight(at, x, hidden_gradient, gradients);
    return;
  }
  // One pass for GELU and its bias.
  LinearBackwardInput(*products_, rows_, inner_, cols_, y_gradient, weights + at.down,
                      hidden_gradient, Gradient::kAsBefore);
  BiasGeluBackward(rows_, inner_, hidden, hidden_gradient, Bias(gradients, at.up_bias));
  LinearBackwardWeight(*products_, rows_, cols_, inner_, hidden_gradient, x, gradients + at.up);
  LinearBackwardInput(*products_, rows_, cols_, inner_, hidden_gradient, weights + at.up,
                      x_gradient, Gradient::kAsBefore);
}

template <class Real>
void FeedForward<Real>::BackwardInput(const Real* weights, const FeedForwardTensors& at,
                                      const Real* hidden, const Real* y_gradient,
                                      Real* hidden_gradient, Real* x_gradient) {
  if (!gated_) {
    LinearBackwardInput(*products_, rows_, inner_, cols_, y_gradient, weights + at.down,
                        hidden_gradient);
    GeluBackward(rows_, inner_, hidden, hidden_gradient);
    LinearBackwardInput(*products_, rows_, cols_, inner_, hidden_gradient, weights + at.up,
                        x_gradient);
    return;
  }
  LinearBackwardInput(*products_, rows_, inner_, cols_, y_gradient, weights + at.down,
                      activated_gradient_.data());
  SwiGluBackward(rows_, inner_, hidden, activated_gradient_.data(), hidden_gradient);
  LinearBackwardInput(*products_, rows_, cols_, inner_, hidden_gradient, 2 * inner_,
                      weights + at.gate, Real{0}, x_gradient);
  LinearBackwardInput(*products_, rows_, cols_, inner_, hidden_gradient + inner_, 2 * inner_,
                      weights + at.up, Real{1}, x_gradient);
}

template <class Real>
void FeedForward<Real>::BackwardWeight(const FeedForwardTensors& at, const Real* x,
                                       const Real* activated, const Real* y_gradient,
                                       const Real* hidden_gradient, Real* gradients) const {
  DownBackwardWeight(at, activated, y_gradient, gradients);
  UpBackwardWeight(at, x, hidden_gradient, gradients);
}

template <class Real>
void FeedForward<Real>::DownBackwardWeight(const FeedForwardTensors& at, const Real* activated,
                                           const Real* y_gradient, Real* gradients) const {
  AddColumnSums(rows_, cols_, y_gradient, Bias(gradients, at.down_bias));
  LinearBackwardWeight(*products_, rows_, inner_, cols_, y_gradient, activated,
                       gradients + at.down);
}

template <class Real>
void FeedForward<Real>::UpBackwardWeight(const FeedForwardTensors& at, const Real* x,
                                         const Real* hidden_gradient, Real* gradients) const {
  if (!gated_) {
    AddColumnSums(rows_, inner_, hidden_gradient, Bias(gradients, at.up_bias));
    LinearBackwardWeight(*products_, rows_, cols_, inner_, hidden_gradient, x, gradients + at.up);
    return;
  }
  for (int64_t i = 0; at.up_bias >= 0 && i < rows_; ++i) {
    AddColumnSums(1, inner_, hidden_gradient + i * 2 * inner_, gradients + at.gate_bias);
    AddColumnSums(1, inner_, hidden_gradient + i * 2 * inner_ + inner_, gradients + at.up_bias);
  }
  LinearBackwardWeight(*products_, rows_, cols_, inner_, hidden_gradient, 2 * inner_, x,
                       gradients + at.gate);
  LinearBackwardWeight(*products_, rows_, cols_, inner_, hidden_gradient + inner_, 2 * inner_, x,
                       gradients + at.up);
}

template class FeedForward<float>;
template class FeedForward<double>;

}  // namespace pipelag
