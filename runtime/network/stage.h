// One stage of a pre-LayerNorm GPT (Radford et al., GPT-2, 2019): what a micro-batch goes through
// forward and backward, as products and kernels over one buffer of weights, one of gradients and
// one activation slot per micro-batch in flight. Knows no schedule, rank, thread or optimizer.
#pragma once

#include <cstdint>
#include <vector>

#include "models/network.h"
#include "runtime/data/token.h"
#include "runtime/network/layout.h"

namespace pipelag {

/// A block: x + proj(attention(ln_1 x)), then x + c_proj(gelu(c_fc(ln_2 x))). Attention is causal
/// with scale 1 / sqrt(C / heads); q, k, v are packed in that order in c_attn. After the last block
/// ln_f, then logits = x · lm_headᵀ, then the cross-entropy with the targets.
///
/// All buffers are the caller's. A slot is written by one Forward and read by the Backward of the
/// same micro-batch, or by its BackwardInput and BackwardWeight; slots, weights and gradients of
/// different calls may differ. The object holds scratch only: one per rank, used by one thread at a
/// time, after PrepareThread(); results do not depend on which. Nothing is allocated after
/// construction. Boundary tensors are (B, T, C). Real is float or double (double is slow and meant
/// for tests).
template <class Real>
class StageNetwork {
 public:
  /// `range` is a non-empty part of the layers; B = `microbatch_size` ≥ 1. Throws Error for an
  /// ill-formed shape and for a vocabulary above kMostTokens.
  StageNetwork(const NetworkShape& shape, LayerRange range, int microbatch_size);

  const StageLayout& layout() const { return layout_; }
  bool first() const { return first_; }  ///< takes tokens
  bool last() const { return last_; }    ///< yields the loss

  /// Elements of one activation slot: all that the backward needs, a copy of the stage's input (or
  /// the embedded tokens) and of its output included. 64-byte alignment of a slot is best.
  int64_t activation_elements() const { return activation_elements_; }

  /// B · T · C, the elements of a message between stages.
  int64_t boundary_elements() const { return rows_ * cols_; }

  /// Returns the sum of the B · T token losses in nats on the last stage, 0 elsewhere. `tokens` is
  /// read by the first stage, `input` by the others, `targets` by the last, `output` written by all
  /// but the last; pointers not used may be null. Tokens and targets must be below the vocabulary.
  double Forward(const Real* weights, const Token* tokens, const Real* input, const Token* targets,
                 Real* activation, Real* output);

  /// Adds the gradient of loss_scale · Σ token losses to `gradients` and writes that of the input
  /// to `input_gradient` (all but the first stage). `output_gradient` (all but the last stage)
  /// already carries the scale, so `loss_scale` is read by the last stage only: 1 / (B T m) yields
  /// the mean over a batch of m micro-batches. `weights` are those the gradient is taken at;
  /// `activation`, `tokens` and `targets` those of the Forward. input_gradient must not overlap
  /// output_gradient.
  void Backward(const Real* weights, const Real* activation, const Token* tokens,
                const Token* targets, const Real* output_gradient, Real loss_scale,
                Real* input_gradient, Real* gradients);

  /// Backward in two halves, to the last bit the same. The first writes the input's gradient and,
  /// to `kept`, kept_elements() that the second adds the weights' gradient from, any time later,
  /// without weights. Either needs the activation, BackwardWeight the tokens, BackwardInput the
  /// targets.
  void BackwardInput(const Real* weights, const Real* activation, const Token* targets,
                     const Real* output_gradient, Real loss_scale, Real* input_gradient,
                     Real* kept);
  void BackwardWeight(const Real* activation, const Token* tokens, const Real* kept,
                      Real* gradients);
  int64_t kept_elements() const { return kept_elements_; }

 private:
  /// Offsets of one block's tensors in the stage's buffer.
  struct BlockWeights {
    int64_t norm1_gain, norm1_shift, qkv, qkv_bias, projection, projection_bias;
    int64_t norm2_gain, norm2_shift, up, up_bias, down, down_bias;
  };

  /// Offsets of one block's results in an activation slot.
  struct BlockResults {
    int64_t input;  ///< the residual stream before the block
    int64_t mean1, deviation1, norm1;
    int64_t qkv, probabilities, attended;
    int64_t middle;  ///< the residual stream after attention
    int64_t mean2, deviation2, norm2;
    int64_t hidden, gelu;  ///< c_fc with its bias, before and after GELU
    int64_t output;        ///< the residual stream after the block
  };

  /// Offsets, in what BackwardInput keeps, of the gradients of one block's results.
  struct BlockKept {
    int64_t output, hidden, norm2, middle, qkv, norm1;
  };

  void PlaceWeights(int layers);
  void PlaceActivation(int layers);
  void PlaceKept(int layers);

  void AttentionForward(const Real* qkv, Real* probabilities, Real* attended) const;
  void AttentionBackward(const Real* qkv, const Real* probabilities, const Real* attended_gradient,
                         Real* qkv_gradient);
  void BlockForward(const Real* weights, const BlockWeights& at, const BlockResults& to,
                    Real* activation) const;
  void BlockBackward(const Real* weights, const BlockWeights& at, const BlockResults& from,
                     const Real* activation, Real* stream_gradient, Real* gradients);
  void BlockBackwardInput(const Real* weights, const BlockWeights& at, const BlockResults& from,
                          const BlockKept& to, const Real* activation, Real* stream_gradient,
                          Real* kept);
  void BlockBackwardWeight(const BlockWeights& at, const BlockResults& from, const BlockKept& with,
                           const Real* activation, const Real* kept, Real* gradients) const;
  double HeadForward(const Real* weights, const Token* targets, Real* activation) const;
  void HeadBackward(const Real* weights, const Real* activation, const Token* targets,
                    Real loss_scale, Real* stream_gradient, Real* gradients);
  void HeadBackwardInput(const Real* weights, const Real* activation, const Token* targets,
                         Real loss_scale, Real* stream_gradient, Real* kept) const;

  StageLayout layout_;
  bool first_;
  bool last_;
  int64_t batch_;
  int64_t sequence_;
  int64_t heads_;
  int64_t cols_;  ///< C
  int64_t rows_;  ///< B · T
  int64_t vocabulary_;

  std::vector<BlockWeights> block_weights_;
  std::vector<BlockResults> block_results_;
  int64_t token_table_ = 0;
  int64_t position_table_ = 0;
  int64_t final_gain_ = 0;
  int64_t final_shift_ = 0;
  int64_t head_ = 0;
  int64_t final_mean_ = 0;
  int64_t final_deviation_ = 0;
  int64_t final_norm_ = 0;
  int64_t head_probabilities_ = 0;
  int64_t activation_elements_ = 0;

  std::vector<BlockKept> block_kept_;
  int64_t kept_input_ = 0;   ///< of the first stage
  int64_t kept_logits_ = 0;  ///< of the last stage
  int64_t kept_final_norm_ = 0;
  int64_t kept_elements_ = 0;

  std::vector<Real> wide_;    ///< gradients of qkv, of the MLP's inside, of the logits
  std::vector<Real> narrow_;  ///< gradient of one branch, (B T, C)
  std::vector<Real> stream_;  ///< the first stage's gradient of the residual stream
  std::vector<Real> scores_;  ///< gradient of one head's attention matrix
};

extern template class StageNetwork<float>;
extern template class StageNetwork<double>;

}  // namespace pipelag
