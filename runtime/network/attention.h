// Causal self-attention of a block: queries, keys and values from the normalised stream, and back.
// Knows pointers and sizes only, neither the residual stream nor the projection behind it.
#pragma once

#include <cstdint>
#include <vector>

#include "models/network.h"
#include "runtime/network/layout.h"
#include "runtime/network/products.h"
#include "runtime/network/rotary.h"

namespace pipelag {

/// Offsets in a stage's buffer; a bias of −1 is none. `key` −1: `query` is c_attn, which yields
/// queries, keys and values in that order.
struct AttentionTensors {
  int64_t query = -1, query_bias = -1;
  int64_t key = -1, key_bias = -1;
  int64_t value = -1, value_bias = -1;
};

/// Head h attends with scale 1 / sqrt(D), D = C / heads, to the keys and values of head
/// h · kv_heads / heads (grouped queries: Ainslie et al., arXiv 2305.13245). Rotary positions turn
/// the pairs (i, i + D/2) of every query and key at position t by t · 10000^(−2i/D), as Hugging
/// Face's Llama does. Rows of qkv hold all queries, keys and values: C + 2 · kv_size of them,
/// rotated.
template <class Real>
class Attention {
 public:
  /// Of the linear layers' `products`, which are borrowed; its own are in the precision of Real.
  Attention(const NetworkShape& shape, int64_t batch, Products<Real>& products);

  int64_t qkv_cols() const { return cols_ + 2 * kv_cols_; }
  int64_t probability_elements() const { return batch_ * heads_ * sequence_ * sequence_; }

  /// `x` is (batch · sequence, C), as is `attended`.
  void Forward(const Real* weights, const AttentionTensors& at, const Real* x, Real* qkv,
               Real* probabilities, Real* attended) const;

  /// What Forward keeps beside qkv, to the last bit.
  void Probabilities(const Real* qkv, Real* probabilities) const;

  void BackwardInput(const Real* weights, const AttentionTensors& at, const Real* qkv,
                     const Real* probabilities, const Real* attended_gradient, Real* qkv_gradient,
                     Real* x_gradient);
  /// Adds to `gradients`. `gradient`: whether BackwardInput has just been called for it.
  void BackwardWeight(const AttentionTensors& at, const Real* qkv_gradient, const Real* x,
                      Real* gradients, Gradient gradient = Gradient::kNew) const;

 private:
  void Rotate(Real direction, Real* qkv) const;
  void CoreBackward(const Real* qkv, const Real* probabilities, const Real* attended_gradient,
                    Real* qkv_gradient);
  /// Calls body(tensor, bias, first column, columns) for each matrix.
  template <class Body>
  void ForMatrices(const AttentionTensors& at, Body body) const;

  Products<Real>* products_;
  int64_t batch_;
  int64_t sequence_;
  int64_t heads_;
  int64_t kv_heads_;
  int64_t cols_;
  int64_t kv_cols_;
  RotaryTables<Real> rotary_;  ///< empty without rotation
  std::vector<Real> scores_;   ///< gradient of one head's attention matrix
};

extern template class Attention<float>;
extern template class Attention<double>;

}  // namespace pipelag
