// The MLP of a block, from the normalised stream to what is added to it, and back. Knows pointers
// and sizes only, not the residual stream.
#pragma once

#include <cstdint>
#include <vector>

#include "models/network.h"
#include "runtime/network/products.h"

namespace pipelag {

/// Offsets in a stage's buffer; a bias of −1 is none. `gate` is SwiGLU's only.
struct FeedForwardTensors {
  int64_t gate = -1, gate_bias = -1;
  int64_t up = -1, up_bias = -1;
  int64_t down = -1, down_bias = -1;
};

/// Rows of `hidden` are what the first matrix yields, with its bias: inner_size numbers, or gate
/// and up behind each other. `activated` (rows, inner_size) is what the last one takes.
template <class Real>
class FeedForward {
 public:
  /// `products` are borrowed.
  FeedForward(const NetworkShape& shape, int64_t rows, Products<Real>& products);

  int64_t hidden_cols() const { return gated_ ? 2 * inner_ : inner_; }
  int64_t inner_size() const { return inner_; }

  /// `x` is (rows, C).
  void Forward(const Real* weights, const FeedForwardTensors& at, const Real* x, Real* hidden,
               Real* activated) const;
  /// What Forward writes to `activated`, to the last bit.
  void Activate(const Real* hidden, Real* activated) const;
  /// y = down · activated, without its bias.
  void Down(const Real* weights, const FeedForwardTensors& at, const Real* activated,
            Real* y) const;

  /// Both gradients; adds to `gradients`. `hidden_gradient` is written.
  void Backward(const Real* weights, const FeedForwardTensors& at, const Real* x,
                const Real* hidden, const Real* activated, const Real* y_gradient,
                Real* hidden_gradient, Real* x_gradient, Real* gradients);

  /// Its two halves, to the last bit the same.
  void BackwardInput(const Real* weights, const FeedForwardTensors& at, const Real* hidden,
                     const Real* y_gradient, Real* hidden_gradient, Real* x_gradient);
  void BackwardWeight(const FeedForwardTensors& at, const Real* x, const Real* activated,
                      const Real* y_gradient, const Real* hidden_gradient, Real* gradients) const;

 private:
  void DownBackwardWeight(const FeedForwardTensors& at, const Real* activated,
                          const Real* y_gradient, Real* gradients) const;
  void UpBackwardWeight(const FeedForwardTensors& at, const Real* x, const Real* hidden_gradient,
                        Real* gradients) const;

  Products<Real>* products_;
  bool gated_;
  int64_t rows_;
  int64_t cols_;
  int64_t inner_;
  std::vector<Real> activated_gradient_;  ///< SwiGLU's cannot become that of `hidden` in place
};

extern template class FeedForward<float>;
extern template class FeedForward<double>;

}  // namespace pipelag
