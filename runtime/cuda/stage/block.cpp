// A block's passes in order.
#include "runtime/cuda/stage/block.h"

#include "runtime/cuda/kernels/elementwise.h"
#include "runtime/cuda/kernels/norm.h"

namespace pipelag::cuda {
namespace {

template <class T>
T* Optional(T* buffer, int64_t offset) {
  return offset < 0 ? nullptr : buffer + offset;
}

float* Statistics(const BlockResults& results, size_t which) {
  return static_cast<float*>(results[which]);
}

template <class T>
T* Values(const BlockResults& results, size_t which) {
  return static_cast<T*>(results[which]);
}

}  // namespace

template <class T>
DeviceBlock<T>::DeviceBlock(const NetworkShape& shape, int64_t batch, Recompute recompute)
    : recompute_(recompute),
      norm_(shape.norm),
      gated_(shape.mlp == MlpChoice::kSwiGlu),
      rows_(batch * shape.sequence),
      cols_(shape.hidden),
      inner_(shape.inner_size()),
      attention_{.batch = batch,
                 .sequence = shape.sequence,
                 .heads = shape.heads,
                 .kv_heads = shape.kv_heads(),
                 .head_size = shape.head_size()} {}

template <class T>
std::vector<typename DeviceBlock<T>::Piece> DeviceBlock<T>::Merged(
    const std::vector<Piece>& pieces) const {
  std::vector<Piece> merged;
  for (const Piece& piece : pieces) {
    if (!merged.empty() && piece.bias < 0 &&
        merged.back().weight + merged.back().cols * cols_ == piece.weight) {
      merged.back().cols += piece.cols;
    } else {
      merged.push_back(piece);
    }
  }
  return merged;
}

template <class T>
std::vector<typename DeviceBlock<T>::Piece> DeviceBlock<T>::AttentionPieces(
    const AttentionTensors& at) const {
  if (at.key < 0) {
    return {{.weight = at.query, .bias = at.query_bias, .first = 0, .cols = attention_.stride()}};
  }
  const int64_t kv_cols = attention_.kv_heads * attention_.head_size;
  return Merged(
      {{.weight = at.query, .bias = at.query_bias, .first = 0, .cols = cols_},
       {.weight = at.key, .bias = at.key_bias, .first = cols_, .cols = kv_cols},
       {.weight = at.value, .bias = at.value_bias, .first = cols_ + kv_cols, .cols = kv_cols}});
}

template <class T>
std::vector<typename DeviceBlock<T>::Piece> DeviceBlock<T>::UpPieces(
    const FeedForwardTensors& at) const {
  const Piece up = {
      .weight = at.up, .bias = at.up_bias, .first = gated_ ? inner_ : 0, .cols = inner_};
  if (!gated_) return {up};
  return Merged({{.weight = at.gate, .bias = at.gate_bias, .first = 0, .cols = inner_}, up});
}

template <class T>
LinearWeights<T> DeviceBlock<T>::WeightsAt(const Weights<T>& weights, int64_t weight,
                                           int64_t bias) const {
  return {.weight = weights.values + weight,
          .bias = Optional(weights.masters, bias),
          .bias_copy = Optional(weights.values, bias)};
}

template <class T>
void DeviceBlock<T>::PiecesForward(const LinearTools& tools, const Weights<T>& weights,
                                   const std::vector<Piece>& pieces, int64_t stride, const T* x,
                                   T* y) const {
  for (const Piece& piece : pieces) {
    LinearForward(tools, {rows_, cols_, piece.cols, stride}, x,
                  WeightsAt(weights, piece.weight, piece.bias), y + piece.first);
  }
}

template <class T>
void DeviceBlock<T>::PiecesBackwardInput(const LinearTools& tools, const Weights<T>& weights,
                                         const std::vector<Piece>& pieces, int64_t stride,
                                         const T* y_gradient, T* x_gradient) const {
  for (const Piece& piece : pieces) {
    LinearBackwardInput(tools, {rows_, cols_, piece.cols, stride}, 1, y_gradient + piece.first,
                        weights.values + piece.weight, piece.first == 0 ? 0.0f : 1.0f, x_gradient);
  }
}

template <class T>
void DeviceBlock<T>::PiecesBackwardWeight(const LinearTools& tools,
                                          const std::vector<Piece>& pieces, int64_t stride,
                                          const T* y_gradient, const T* x, float* gradients) const {
  for (const Piece& piece : pieces) {
    LinearBackwardWeight(tools, {rows_, cols_, piece.cols, stride}, 1, y_gradient + piece.first, x,
                         gradients + piece.weight, Optional(gradients, piece.bias));
  }
}

/// Mean, deviation and norm follow each other among the results.
template <class T>
void DeviceBlock<T>::NormTo(const BlockTools<T>& tools, const Weights<T>& weights, int64_t gain,
                            int64_t shift, const T* x, const BlockResults& to,
                            BlockResult first) const {
  NormForward(tools.stream(), norm_, rows_, cols_, x, weights.masters + gain,
              Optional(weights.masters, shift), Statistics(to, first), Statistics(to, first + 1u),
              Values<T>(to, first + 2u));
}

template <class T>
void DeviceBlock<T>::Attend(const BlockTools<T>& tools, const Weights<T>& weights,
                            const BlockTensors& at, const T* input, const BlockResults& to) const {
  NormTo(tools, weights, at.norm1_gain, at.norm1_shift, input, to, kMean1);
  T* qkv = Values<T>(to, kQkv);
  PiecesForward(tools.linear, weights, AttentionPieces(at.attention), attention_.stride(),
                Values<T>(to, kNorm1), qkv);
  if (cosines_ != nullptr) {
    Rotate(tools.stream(), rows_, attention_.sequence, attention_.heads + attention_.kv_heads,
           attention_.head_size, attention_.stride(), 1.0f, cosines_, sines_, qkv);
  }
  AttentionForward(tools.stream(), attention_, qkv, Values<T>(to, kAttended),
                   Statistics(to, kLogSums));
  LinearForwardAdd(tools.linear, {rows_, cols_, cols_, cols_}, Values<T>(to, kAttended),
                   WeightsAt(weights, at.projection, at.projection_bias), input,
                   Values<T>(to, kMiddle));
  NormTo(tools, weights, at.norm2_gain, at.norm2_shift, Values<T>(to, kMiddle), to, kMean2);
}

template <class T>
void DeviceBlock<T>::Up(const BlockTools<T>& tools, const Weights<T>& weights,
                        const FeedForwardTensors& at, const BlockResults& to) const {
  T* hidden = Values<T>(to, kHidden);
  if (gated_) {
    PiecesForward(tools.linear, weights, UpPieces(at), 2 * inner_, Values<T>(to, kNorm2), hidden);
    SwiGluForward<T>(tools.stream(), rows_, inner_, hidden, Values<T>(to, kActivated));
    return;
  }
  // What GELU alone is to compute again to the last bit must take its argument as it is kept.
  const bool fuse = recompute_ != Recompute::kSelective;
  LinearForwardGelu(tools.linear, {rows_, cols_, inner_, inner_}, fuse, Values<T>(to, kNorm2),
                    WeightsAt(weights, at.up, at.up_bias), hidden, Values<T>(to, kActivated));
}

template <class T>
void DeviceBlock<T>::Forward(const BlockTools<T>& tools, const Weights<T>& weights,
                             const BlockTensors& at, const T* input, const BlockResults& to,
                             T* output) const {
  Attend(tools, weights, at, input, to);
  Up(tools, weights, at.mlp, to);
  LinearForwardAdd(tools.linear, {rows_, inner_, cols_, cols_}, Values<T>(to, kActivated),
                   WeightsAt(weights, at.mlp.down, at.mlp.down_bias), Values<T>(to, kMiddle),
                   output);
}

template <class T>
void DeviceBlock<T>::Recalculate(const BlockTools<T>& tools, const Weights<T>& weights,
                                 const BlockTensors& at, const T* input,
                                 const BlockResults& results) const {
  if (recompute_ == Recompute::kNone) return;
  if (recompute_ == Recompute::kFull) {
    Attend(tools, weights, at, input, results);
    Up(tools, weights, at.mlp, results);
    return;
  }
  NormTo(tools, weights, at.norm1_gain, at.norm1_shift, input, results, kMean1);
  NormTo(tools, weights, at.norm2_gain, at.norm2_shift, Values<T>(results, kMiddle), results,
         kMean2);
  T* hidden = Values<T>(results, kHidden);
  T* activated = Values<T>(results, kActivated);
  if (gated_) {
    SwiGluForward<T>(tools.stream(), rows_, inner_, hidden, activated);
  } else {
    BiasGeluForward<T>(tools.stream(), rows_, inner_, nullptr, hidden, activated);
  }
}

template <class T>
void DeviceBlock<T>::BackwardInput(const BlockTools<T>& tools, const Weights<T>& weights,
                                   const BlockTensors& at, const T* input,
                                   const BlockResults& results, const T* output_gradient,
                                   const BlockGradients<T>& kept, T* input_gradient) const {
  const LinearSize down = {rows_, inner_, cols_, cols_};
  const T* hidden = Values<T>(results, kHidden);
  if (gated_) {
    LinearBackwardInput(tools.linear, down, 1, output_gradient, weights.values + at.mlp.down, 0,
                        tools.activated);
    SwiGluBackward(tools.stream(), rows_, inner_, hidden, tools.activated, kept[kOfHidden]);
  } else {
    LinearBackwardGelu(tools.linear, down, output_gradient, weights.values + at.mlp.down, hidden,
                       kept[kOfHidden]);
  }
  PiecesBackwardInput(tools.linear, weights, UpPieces(at.mlp), inner_ * (gated_ ? 2 : 1),
                      kept[kOfHidden], kept[kOfNorm2]);
  NormBackwardInput(tools.stream(), norm_, rows_, cols_, kept[kOfNorm2],
                    Values<T>(results, kMiddle), weights.masters + at.norm2_gain,
                    Statistics(results, kMean2), Statistics(results, kDeviation2), output_gradient,
                    kept[kOfMiddle]);

  LinearBackwardInput(tools.linear, {rows_, cols_, cols_, cols_}, 1, kept[kOfMiddle],
                      weights.values + at.projection, 0, tools.narrow);
  AttentionBackward(tools.stream(), attention_, Values<T>(results, kQkv),
                    Values<T>(results, kAttended), Statistics(results, kLogSums), tools.narrow,
                    tools.row_dots, kept[kOfQkv]);
  if (cosines_ != nullptr) {
    Rotate(tools.stream(), rows_, attention_.sequence, attention_.heads + attention_.kv_heads,
           attention_.head_size, attention_.stride(), -1.0f, cosines_, sines_, kept[kOfQkv]);
  }
  PiecesBackwardInput(tools.linear, weights, AttentionPieces(at.attention), attention_.stride(),
                      kept[kOfQkv], kept[kOfNorm1]);
  NormBackwardInput(tools.stream(), norm_, rows_, cols_, kept[kOfNorm1], input,
                    weights.masters + at.norm1_gain, Statistics(results, kMean1),
                    Statistics(results, kDeviation1), kept[kOfMiddle], input_gradient);
}

template <class T>
void DeviceBlock<T>::BackwardWeight(const BlockTools<T>& tools, const BlockTensors& at,
                                    const T* input, const BlockResults& results,
                                    const T* output_gradient, const BlockGradients<T>& kept,
                                    float* gradients) const {
  LinearBackwardWeight(tools.linear, {rows_, inner_, cols_, cols_}, 1, output_gradient,
                       Values<T>(results, kActivated), gradients + at.mlp.down,
                       Optional(gradients, at.mlp.down_bias));
  PiecesBackwardWeight(tools.linear, UpPieces(at.mlp), inner_ * (gated_ ? 2 : 1), kept[kOfHidden],
                       Values<T>(results, kNorm2), gradients);
  NormBackwardWeight(tools.stream(), norm_, rows_, cols_, kept[kOfNorm2],
                     Values<T>(results, kMiddle), Statistics(results, kMean2),
                     Statistics(results, kDeviation2), tools.norm_sums, gradients + at.norm2_gain,
                     Optional(gradients, at.norm2_shift));
  LinearBackwardWeight(tools.linear, {rows_, cols_, cols_, cols_}, 1, kept[kOfMiddle],
                       Values<T>(results, kAttended), gradients + at.projection,
                       Optional(gradients, at.projection_bias));
  PiecesBackwardWeight(tools.linear, AttentionPieces(at.attention), attention_.stride(),
                       kept[kOfQkv], Values<T>(results, kNorm1), gradients);
  NormBackwardWeight(tools.stream(), norm_, rows_, cols_, kept[kOfNorm1], input,
                     Statistics(results, kMean1), Statistics(results, kDeviation1), tools.norm_sums,
                     gradients + at.norm1_gain, Optional(gradients, at.norm1_shift));
}

template class DeviceBlock<float>;
template class DeviceBlock<Bfloat16>;

}  // namespace pipelag::cuda
