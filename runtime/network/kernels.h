// The passes of a GPT over its activations that are not matrix products: embedding, bias,
// LayerNorm, GELU, SwiGLU, causal softmax, cross-entropy, forward and backward. They know pointers
// and sizes only, and allocate nothing. Matrices are row-major without gaps; Real is float or
// double. Every sum has a fixed order, so a result is a pure function of the arguments. Gradients
// of parameters are added to what is there; other outputs are overwritten unless a comment says
// otherwise. A bias, shift or position table that is null is none, and so is its gradient.
#pragma once

#include <cstdint>

#include "runtime/data/token.h"

namespace pipelag {

/// x[b,t,:] = token_table[tokens[b,t],:] + position_table[t,:]; x is (batch · sequence, cols).
template <class Real>
void EmbedForward(const Token* tokens, int64_t batch, int64_t sequence, int64_t cols,
                  const Real* token_table, const Real* position_table, Real* x);

template <class Real>
void EmbedBackward(const Token* tokens, int64_t batch, int64_t sequence, int64_t cols,
                   const Real* x_gradient, Real* token_gradient, Real* position_gradient);

/// x += bias, for every row.
template <class Real>
void AddBias(int64_t rows, int64_t cols, const Real* bias, Real* x);

/// x = (x + bias) + residual.
template <class Real>
void AddBiasAndResidual(int64_t rows, int64_t cols, const Real* bias, const Real* residual,
                        Real* x);

/// sums[j] += Σ over rows of x[i,j]: the gradient of a bias.
template <class Real>
void AddColumnSums(int64_t rows, int64_t cols, const Real* x, Real* sums);

/// y = (x − mean) / sqrt(variance + 1e-5) · gain + shift, with the biased variance of each row (Ba,
/// Kiros, Hinton, arXiv 1607.06450). Keeps mean and 1 / sqrt(…) of each row for the backward.
template <class Real>
void NormForward(int64_t rows, int64_t cols, const Real* x, const Real* gain, const Real* shift,
                 Real* mean, Real* inverse_deviation, Real* y);

/// Adds to x_gradient, since x also runs past the norm on the residual stream.
template <class Real>
void NormBackward(int64_t rows, int64_t cols, const Real* y_gradient, const Real* x,
                  const Real* gain, const Real* mean, const Real* inverse_deviation,
                  Real* x_gradient, Real* gain_gradient, Real* shift_gradient);

/// The two halves of NormBackward: what it adds to x_gradient, and what to the parameters'
/// gradients.
template <class Real>
void NormBackwardInput(int64_t rows, int64_t cols, const Real* y_gradient, const Real* x,
                       const Real* gain, const Real* mean, const Real* inverse_deviation,
                       Real* x_gradient);

template <class Real>
void NormBackwardWeight(int64_t rows, int64_t cols, const Real* y_gradient, const Real* x,
                        const Real* mean, const Real* inverse_deviation, Real* gain_gradient,
                        Real* shift_gradient);

/// x += bias; y = gelu(x) in the tanh form: x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³))) (Hendrycks,
/// Gimpel, arXiv 1606.08415).
template <class Real>
void BiasGeluForward(int64_t rows, int64_t cols, const Real* bias, Real* x, Real* y);

/// The same of an x that has its bias, or none.
template <class Real>
void GeluForward(int64_t rows, int64_t cols, const Real* x, Real* y);

/// In place: y_gradient becomes the gradient of x, the biased input; its column sums are added to
/// bias_gradient.
template <class Real>
void BiasGeluBackward(int64_t rows, int64_t cols, const Real* x, Real* y_gradient,
                      Real* bias_gradient);

/// The same without the bias.
template <class Real>
void GeluBackward(int64_t rows, int64_t cols, const Real* x, Real* y_gradient);

/// y = silu(gate) ⊙ up, silu(x) = x / (1 + e^−x), of rows that hold gate and up one behind the
/// other (Shazeer, arXiv 2002.05202).
template <class Real>
void SwiGluForward(int64_t rows, int64_t cols, const Real* gate_and_up, Real* y);

/// `gradient`, that of gate_and_up, must not overlap y_gradient.
template <class Real>
void SwiGluBackward(int64_t rows, int64_t cols, const Real* gate_and_up, const Real* y_gradient,
                    Real* gradient);

/// In place: row t of the (size, size) scores becomes softmax(scale · scores[t, 0..t]), then zeros.
template <class Real>
void CausalSoftmaxForward(int64_t size, Real scale, Real* scores);

/// In place: the gradient of the probabilities becomes the gradient of the unscaled scores, zero
/// above the diagonal.
template <class Real>
void CausalSoftmaxBackward(int64_t size, Real scale, const Real* probabilities, Real* gradient);

/// In place: each row of logits becomes its softmax. Returns Σ −ln probability[i, targets[i]],
/// added in double in ascending order of rows.
template <class Real>
double CrossEntropyForward(int64_t rows, int64_t cols, const Token* targets, Real* logits);

/// logit_gradient = scale · (probabilities − one-hot(targets)).
template <class Real>
void CrossEntropyBackward(int64_t rows, int64_t cols, const Real* probabilities,
                          const Token* targets, Real scale, Real* logit_gradient);

}  // namespace pipelag
