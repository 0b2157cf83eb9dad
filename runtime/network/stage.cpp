#include "runtime/network/stage.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "models/error.h"
#include "runtime/network/gemm.h"
#include "runtime/network/kernels.h"

namespace pipelag {
namespace {

/// y (rows, outputs) = x (rows, inputs) · wᵀ.
template <class Real>
void LinearForward(int64_t rows, int64_t inputs, int64_t outputs, const Real* x, const Real* w,
                   Real* y) {
  Multiply<Real>(Transpose::kNo, Transpose::kYes, rows, outputs, inputs, 1, x, inputs, w, inputs, 0,
                 y, outputs);
}

template <class Real>
void LinearBackwardInput(int64_t rows, int64_t inputs, int64_t outputs, const Real* y_gradient,
                         const Real* w, Real* x_gradient) {
  Multiply<Real>(Transpose::kNo, Transpose::kNo, rows, inputs, outputs, 1, y_gradient, outputs, w,
                 inputs, 0, x_gradient, inputs);
}

template <class Real>
void LinearBackwardWeight(int64_t rows, int64_t inputs, int64_t outputs, const Real* y_gradient,
                          const Real* x, Real* w_gradient) {
  Multiply<Real>(Transpose::kYes, Transpose::kNo, outputs, inputs, rows, 1, y_gradient, outputs, x,
                 inputs, 1, w_gradient, inputs);
}

/// The offset of `elements` behind `next`, which moves behind them.
int64_t Place(int64_t elements, int64_t& next) {
  const int64_t offset = next;
  next +=
      (elements + StageLayout::kAlignment - 1) / StageLayout::kAlignment * StageLayout::kAlignment;
  return offset;
}

}  // namespace

template <class Real>
StageNetwork<Real>::StageNetwork(const NetworkShape& shape, LayerRange range, int microbatch_size)
    : layout_(shape, range),
      first_(range.first == 0),
      last_(range.last == shape.layers),
      batch_(microbatch_size),
      sequence_(shape.sequence),
      heads_(shape.heads),
      cols_(shape.hidden),
      rows_(batch_ * sequence_),
      vocabulary_(shape.vocabulary) {
  CHECK(microbatch_size >= 1);
  if (shape.vocabulary > kMostTokens) {
    throw Error(fmt::format("tokens have 16 bits: a vocabulary of {} is more than {}",
                            shape.vocabulary, kMostTokens));
  }
  const int layers = range.last - range.first;
  PlaceWeights(layers);
  PlaceActivation(layers);
  PlaceKept(layers);
  const int64_t widest = std::max(4 * cols_, last_ ? vocabulary_ : 0);
  wide_.resize(static_cast<size_t>(rows_ * widest));
  narrow_.resize(static_cast<size_t>(rows_ * cols_));
  stream_.resize(first_ ? static_cast<size_t>(rows_ * cols_) : 0);
  scores_.resize(static_cast<size_t>(sequence_ * sequence_));
}

template <class Real>
void StageNetwork<Real>::PlaceWeights(int layers) {
  auto next = layout_.tensors().begin();
  const auto take = [&] { return (next++)->offset; };
  if (first_) {
    token_table_ = take();
    position_table_ = take();
  }
  for (int layer = 0; layer < layers; ++layer) {
    BlockWeights block{};
    for (int64_t* offset :
         {&block.norm1_gain, &block.norm1_shift, &block.qkv, &block.qkv_bias, &block.projection,
          &block.projection_bias, &block.norm2_gain, &block.norm2_shift, &block.up, &block.up_bias,
          &block.down, &block.down_bias}) {
      *offset = take();
    }
    block_weights_.push_back(block);
  }
  if (last_) {
    final_gain_ = take();
    final_shift_ = take();
    head_ = take();
  }
  CHECK(next == layout_.tensors().end());
}

template <class Real>
void StageNetwork<Real>::PlaceActivation(int layers) {
  int64_t next = 0;
  const auto place = [&](int64_t elements) { return Place(elements, next); };
  int64_t stream = place(rows_ * cols_);
  for (int layer = 0; layer < layers; ++layer) {
    BlockResults block{};
    block.input = stream;
    block.mean1 = place(rows_);
    block.deviation1 = place(rows_);
    block.norm1 = place(rows_ * cols_);
    block.qkv = place(rows_ * 3 * cols_);
    block.probabilities = place(batch_ * heads_ * sequence_ * sequence_);
    block.attended = place(rows_ * cols_);
    block.middle = place(rows_ * cols_);
    block.mean2 = place(rows_);
    block.deviation2 = place(rows_);
    block.norm2 = place(rows_ * cols_);
    block.hidden = place(rows_ * 4 * cols_);
    block.gelu = place(rows_ * 4 * cols_);
    block.output = stream = place(rows_ * cols_);
    block_results_.push_back(block);
  }
  if (last_) {
    final_mean_ = place(rows_);
    final_deviation_ = place(rows_);
    final_norm_ = place(rows_ * cols_);
    head_probabilities_ = place(rows_ * vocabulary_);
  }
  activation_elements_ = next;
}

template <class Real>
void StageNetwork<Real>::PlaceKept(int layers) {
  int64_t next = 0;
  const auto place = [&](int64_t elements) { return Place(elements, next); };
  for (int layer = 0; layer < layers; ++layer) {
    BlockKept block{};
    block.output = place(rows_ * cols_);
    block.hidden = place(rows_ * 4 * cols_);
    block.norm2 = place(rows_ * cols_);
    block.middle = place(rows_ * cols_);
    block.qkv = place(rows_ * 3 * cols_);
    block.norm1 = place(rows_ * cols_);
    block_kept_.push_back(block);
  }
  if (first_) kept_input_ = place(rows_ * cols_);
  if (last_) {
    kept_logits_ = place(rows_ * vocabulary_);
    kept_final_norm_ = place(rows_ * cols_);
  }
  kept_elements_ = next;
}

template <class Real>
double StageNetwork<Real>::Forward(const Real* weights, const Token* tokens, const Real* input,
                                   const Token* targets, Real* activation, Real* output) {
  Real* stream = activation + block_results_.front().input;
  if (first_) {
    EmbedForward(tokens, batch_, sequence_, cols_, weights + token_table_,
                 weights + position_table_, stream);
  } else {
    std::copy(input, input + boundary_elements(), stream);
  }
  for (size_t block = 0; block < block_results_.size(); ++block) {
    BlockForward(weights, block_weights_[block], block_results_[block], activation);
  }
  if (last_) return HeadForward(weights, targets, activation);
  const Real* result = activation + block_results_.back().output;
  std::copy(result, result + boundary_elements(), output);
  return 0;
}

template <class Real>
void StageNetwork<Real>::Backward(const Real* weights, const Real* activation, const Token* tokens,
                                  const Token* targets, const Real* output_gradient,
                                  Real loss_scale, Real* input_gradient, Real* gradients) {
  Real* stream_gradient = first_ ? stream_.data() : input_gradient;
  if (last_) {
    HeadBackward(weights, activation, targets, loss_scale, stream_gradient, gradients);
  } else {
    std::copy(output_gradient, output_gradient + boundary_elements(), stream_gradient);
  }
  for (size_t block = block_results_.size(); block-- > 0;) {
    BlockBackward(weights, block_weights_[block], block_results_[block], activation,
                  stream_gradient, gradients);
  }
  if (first_) {
    EmbedBackward(tokens, batch_, sequence_, cols_, stream_gradient, gradients + token_table_,
                  gradients + position_table_);
  }
}

template <class Real>
void StageNetwork<Real>::BackwardInput(const Real* weights, const Real* activation,
                                       const Token* targets, const Real* output_gradient,
                                       Real loss_scale, Real* input_gradient, Real* kept) {
  Real* stream_gradient = first_ ? kept + kept_input_ : input_gradient;
  if (last_) {
    HeadBackwardInput(weights, activation, targets, loss_scale, stream_gradient, kept);
  } else {
    std::copy(output_gradient, output_gradient + boundary_elements(), stream_gradient);
  }
  for (size_t block = block_results_.size(); block-- > 0;) {
    BlockBackwardInput(weights, block_weights_[block], block_results_[block], block_kept_[block],
                       activation, stream_gradient, kept);
  }
}

template <class Real>
void StageNetwork<Real>::BackwardWeight(const Real* activation, const Token* tokens,
                                        const Real* kept, Real* gradients) {
  if (last_) {
    LinearBackwardWeight(rows_, cols_, vocabulary_, kept + kept_logits_, activation + final_norm_,
                         gradients + head_);
    NormBackwardWeight(rows_, cols_, kept + kept_final_norm_,
                       activation + block_results_.back().output, activation + final_mean_,
                       activation + final_deviation_, gradients + final_gain_,
                       gradients + final_shift_);
  }
  for (size_t block = block_results_.size(); block-- > 0;) {
    BlockBackwardWeight(block_weights_[block], block_results_[block], block_kept_[block],
                        activation, kept, gradients);
  }
  if (first_) {
    EmbedBackward(tokens, batch_, sequence_, cols_, kept + kept_input_, gradients + token_table_,
                  gradients + position_table_);
  }
}

template <class Real>
void StageNetwork<Real>::BlockForward(const Real* weights, const BlockWeights& at,
                                      const BlockResults& to, Real* activation) const {
  const auto w = [&](int64_t offset) { return weights + offset; };
  const auto a = [&](int64_t offset) { return activation + offset; };
  NormForward(rows_, cols_, a(to.input), w(at.norm1_gain), w(at.norm1_shift), a(to.mean1),
              a(to.deviation1), a(to.norm1));
  LinearForward(rows_, cols_, 3 * cols_, a(to.norm1), w(at.qkv), a(to.qkv));
  AddBias(rows_, 3 * cols_, w(at.qkv_bias), a(to.qkv));
  AttentionForward(a(to.qkv), a(to.probabilities), a(to.attended));
  LinearForward(rows_, cols_, cols_, a(to.attended), w(at.projection), a(to.middle));
  AddBiasAndResidual(rows_, cols_, w(at.projection_bias), a(to.input), a(to.middle));

  NormForward(rows_, cols_, a(to.middle), w(at.norm2_gain), w(at.norm2_shift), a(to.mean2),
              a(to.deviation2), a(to.norm2));
  LinearForward(rows_, cols_, 4 * cols_, a(to.norm2), w(at.up), a(to.hidden));
  BiasGeluForward(rows_, 4 * cols_, w(at.up_bias), a(to.hidden), a(to.gelu));
  LinearForward(rows_, 4 * cols_, cols_, a(to.gelu), w(at.down), a(to.output));
  AddBiasAndResidual(rows_, cols_, w(at.down_bias), a(to.middle), a(to.output));
}

template <class Real>
void StageNetwork<Real>::BlockBackward(const Real* weights, const BlockWeights& at,
                                       const BlockResults& from, const Real* activation,
                                       Real* stream_gradient, Real* gradients) {
  const auto w = [&](int64_t offset) { return weights + offset; };
  const auto g = [&](int64_t offset) { return gradients + offset; };
  const auto a = [&](int64_t offset) { return activation + offset; };
  Real* wide = wide_.data();
  Real* narrow = narrow_.data();

  AddColumnSums(rows_, cols_, stream_gradient, g(at.down_bias));
  LinearBackwardWeight(rows_, 4 * cols_, cols_, stream_gradient, a(from.gelu), g(at.down));
  LinearBackwardInput(rows_, 4 * cols_, cols_, stream_gradient, w(at.down), wide);
  BiasGeluBackward(rows_, 4 * cols_, a(from.hidden), wide, g(at.up_bias));
  LinearBackwardWeight(rows_, cols_, 4 * cols_, wide, a(from.norm2), g(at.up));
  LinearBackwardInput(rows_, cols_, 4 * cols_, wide, w(at.up), narrow);
  NormBackward(rows_, cols_, narrow, a(from.middle), w(at.norm2_gain), a(from.mean2),
               a(from.deviation2), stream_gradient, g(at.norm2_gain), g(at.norm2_shift));

  AddColumnSums(rows_, cols_, stream_gradient, g(at.projection_bias));
  LinearBackwardWeight(rows_, cols_, cols_, stream_gradient, a(from.attended), g(at.projection));
  LinearBackwardInput(rows_, cols_, cols_, stream_gradient, w(at.projection), narrow);
  AttentionBackward(a(from.qkv), a(from.probabilities), narrow, wide);
  AddColumnSums(rows_, 3 * cols_, wide, g(at.qkv_bias));
  LinearBackwardWeight(rows_, cols_, 3 * cols_, wide, a(from.norm1), g(at.qkv));
  LinearBackwardInput(rows_, cols_, 3 * cols_, wide, w(at.qkv), narrow);
  NormBackward(rows_, cols_, narrow, a(from.input), w(at.norm1_gain), a(from.mean1),
               a(from.deviation1), stream_gradient, g(at.norm1_gain), g(at.norm1_shift));
}

template <class Real>
void StageNetwork<Real>::BlockBackwardInput(const Real* weights, const BlockWeights& at,
                                            const BlockResults& from, const BlockKept& to,
                                            const Real* activation, Real* stream_gradient,
                                            Real* kept) {
  const auto w = [&](int64_t offset) { return weights + offset; };
  const auto k = [&](int64_t offset) { return kept + offset; };
  const auto a = [&](int64_t offset) { return activation + offset; };

  std::copy(stream_gradient, stream_gradient + boundary_elements(), k(to.output));
  LinearBackwardInput(rows_, 4 * cols_, cols_, stream_gradient, w(at.down), k(to.hidden));
  GeluBackward(rows_, 4 * cols_, a(from.hidden), k(to.hidden));
  LinearBackwardInput(rows_, cols_, 4 * cols_, k(to.hidden), w(at.up), k(to.norm2));
  NormBackwardInput(rows_, cols_, k(to.norm2), a(from.middle), w(at.norm2_gain), a(from.mean2),
                    a(from.deviation2), stream_gradient);

  std::copy(stream_gradient, stream_gradient + boundary_elements(), k(to.middle));
  LinearBackwardInput(rows_, cols_, cols_, stream_gradient, w(at.projection), narrow_.data());
  AttentionBackward(a(from.qkv), a(from.probabilities), narrow_.data(), k(to.qkv));
  LinearBackwardInput(rows_, cols_, 3 * cols_, k(to.qkv), w(at.qkv), k(to.norm1));
  NormBackwardInput(rows_, cols_, k(to.norm1), a(from.input), w(at.norm1_gain), a(from.mean1),
                    a(from.deviation1), stream_gradient);
}

template <class Real>
void StageNetwork<Real>::BlockBackwardWeight(const BlockWeights& at, const BlockResults& from,
                                             const BlockKept& with, const Real* activation,
                                             const Real* kept, Real* gradients) const {
  const auto g = [&](int64_t offset) { return gradients + offset; };
  const auto k = [&](int64_t offset) { return kept + offset; };
  const auto a = [&](int64_t offset) { return activation + offset; };

  AddColumnSums(rows_, cols_, k(with.output), g(at.down_bias));
  LinearBackwardWeight(rows_, 4 * cols_, cols_, k(with.output), a(from.gelu), g(at.down));
  AddColumnSums(rows_, 4 * cols_, k(with.hidden), g(at.up_bias));
  LinearBackwardWeight(rows_, cols_, 4 * cols_, k(with.hidden), a(from.norm2), g(at.up));
  NormBackwardWeight(rows_, cols_, k(with.norm2), a(from.middle), a(from.mean2), a(from.deviation2),
                     g(at.norm2_gain), g(at.norm2_shift));

  AddColumnSums(rows_, cols_, k(with.middle), g(at.projection_bias));
  LinearBackwardWeight(rows_, cols_, cols_, k(with.middle), a(from.attended), g(at.projection));
  AddColumnSums(rows_, 3 * cols_, k(with.qkv), g(at.qkv_bias));
  LinearBackwardWeight(rows_, cols_, 3 * cols_, k(with.qkv), a(from.norm1), g(at.qkv));
  NormBackwardWeight(rows_, cols_, k(with.norm1), a(from.input), a(from.mean1), a(from.deviation1),
                     g(at.norm1_gain), g(at.norm1_shift));
}

template <class Real>
void StageNetwork<Real>::AttentionForward(const Real* qkv, Real* probabilities,
                                          Real* attended) const {
  const int64_t t = sequence_;
  const int64_t d = cols_ / heads_;
  const Real scale = static_cast<Real>(1 / std::sqrt(static_cast<double>(d)));
  for (int64_t b = 0; b < batch_; ++b) {
    for (int64_t h = 0; h < heads_; ++h) {
      const Real* q = qkv + b * t * 3 * cols_ + h * d;
      const Real* k = q + cols_;
      const Real* v = k + cols_;
      Real* p = probabilities + (b * heads_ + h) * t * t;
      Multiply<Real>(Transpose::kNo, Transpose::kYes, t, t, d, 1, q, 3 * cols_, k, 3 * cols_, 0, p,
                     t);
      CausalSoftmaxForward(t, scale, p);
      Multiply<Real>(Transpose::kNo, Transpose::kNo, t, d, t, 1, p, t, v, 3 * cols_, 0,
                     attended + b * t * cols_ + h * d, cols_);
    }
  }
}

template <class Real>
void StageNetwork<Real>::AttentionBackward(const Real* qkv, const Real* probabilities,
                                           const Real* attended_gradient, Real* qkv_gradient) {
  const int64_t t = sequence_;
  const int64_t d = cols_ / heads_;
  const int64_t stride = 3 * cols_;
  const Real scale = static_cast<Real>(1 / std::sqrt(static_cast<double>(d)));
  Real* scores = scores_.data();
  for (int64_t b = 0; b < batch_; ++b) {
    for (int64_t h = 0; h < heads_; ++h) {
      const Real* q = qkv + b * t * stride + h * d;
      const Real* k = q + cols_;
      const Real* v = k + cols_;
      const Real* p = probabilities + (b * heads_ + h) * t * t;
      const Real* out = attended_gradient + b * t * cols_ + h * d;
      Real* q_gradient = qkv_gradient + b * t * stride + h * d;
      Real* k_gradient = q_gradient + cols_;
      Real* v_gradient = k_gradient + cols_;
      Multiply<Real>(Transpose::kYes, Transpose::kNo, t, d, t, 1, p, t, out, cols_, 0, v_gradient,
                     stride);
      Multiply<Real>(Transpose::kNo, Transpose::kYes, t, t, d, 1, out, cols_, v, stride, 0, scores,
                     t);
      CausalSoftmaxBackward(t, scale, p, scores);
      Multiply<Real>(Transpose::kNo, Transpose::kNo, t, d, t, 1, scores, t, k, stride, 0,
                     q_gradient, stride);
      Multiply<Real>(Transpose::kYes, Transpose::kNo, t, d, t, 1, scores, t, q, stride, 0,
                     k_gradient, stride);
    }
  }
}

template <class Real>
double StageNetwork<Real>::HeadForward(const Real* weights, const Token* targets,
                                       Real* activation) const {
  Real* norm = activation + final_norm_;
  Real* logits = activation + head_probabilities_;
  NormForward(rows_, cols_, activation + block_results_.back().output, weights + final_gain_,
              weights + final_shift_, activation + final_mean_, activation + final_deviation_,
              norm);
  LinearForward(rows_, cols_, vocabulary_, norm, weights + head_, logits);
  return CrossEntropyForward(rows_, vocabulary_, targets, logits);
}

template <class Real>
void StageNetwork<Real>::HeadBackward(const Real* weights, const Real* activation,
                                      const Token* targets, Real loss_scale, Real* stream_gradient,
                                      Real* gradients) {
  Real* logits = wide_.data();
  CrossEntropyBackward(rows_, vocabulary_, activation + head_probabilities_, targets, loss_scale,
                       logits);
  LinearBackwardWeight(rows_, cols_, vocabulary_, logits, activation + final_norm_,
                       gradients + head_);
  LinearBackwardInput(rows_, cols_, vocabulary_, logits, weights + head_, narrow_.data());
  std::fill(stream_gradient, stream_gradient + boundary_elements(), Real{0});
  NormBackward(rows_, cols_, narrow_.data(), activation + block_results_.back().output,
               weights + final_gain_, activation + final_mean_, activation + final_deviation_,
               stream_gradient, gradients + final_gain_, gradients + final_shift_);
}

template <class Real>
void StageNetwork<Real>::HeadBackwardInput(const Real* weights, const Real* activation,
                                           const Token* targets, Real loss_scale,
                                           Real* stream_gradient, Real* kept) const {
  CrossEntropyBackward(rows_, vocabulary_, activation + head_probabilities_, targets, loss_scale,
                       kept + kept_logits_);
  LinearBackwardInput(rows_, cols_, vocabulary_, kept + kept_logits_, weights + head_,
                      kept + kept_final_norm_);
  std::fill(stream_gradient, stream_gradient + boundary_elements(), Real{0});
  NormBackwardInput(rows_, cols_, kept + kept_final_norm_,
                    activation + block_results_.back().output, weights + final_gain_,
                    activation + final_mean_, activation + final_deviation_, stream_gradient);
}

template class StageNetwork<float>;
template class StageNetwork<double>;

}  // namespace pipelag
