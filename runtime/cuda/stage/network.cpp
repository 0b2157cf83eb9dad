// The passes of a stage in order.
#include "runtime/cuda/stage/network.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/error.h"
#include "runtime/cuda/kernels/cross_entropy.h"
#include "runtime/cuda/kernels/embedding.h"
#include "runtime/cuda/kernels/norm.h"
#include "runtime/cuda/memory.h"
#include "runtime/network/rotary.h"

namespace pipelag::cuda {
namespace {

template <class T>
T* Optional(T* buffer, int64_t offset) {
  return offset < 0 ? nullptr : buffer + offset;
}

/// Nothing but Forward writes to a slot, nothing but BackwardInput to what it keeps; resolved
/// pointers to them are only read elsewhere.
std::byte* ReadOnly(const void* buffer) {
  return static_cast<std::byte*>(const_cast<void*>(buffer));
}

}  // namespace

template <class T>
DeviceNetwork<T>::DeviceNetwork(const NetworkShape& shape, LayerRange range, int microbatch_size,
                                Recompute recompute, Products& products)
    : layout_(shape, range),
      tensors_(FindTensors(layout_, shape, range)),
      recompute_(recompute),
      norm_(shape.norm),
      first_(range.first == 0),
      last_(range.last == shape.layers),
      batch_(microbatch_size),
      sequence_(shape.sequence),
      cols_(shape.hidden),
      rows_(batch_ * sequence_),
      rotated_(shape.positions == PositionChoice::kRotary ? shape.head_size() / 2 : 0),
      vocabulary_(shape.vocabulary),
      block_(shape, batch_, recompute),
      products_(products) {
  CHECK(microbatch_size >= 1);
  CHECK(recompute != Recompute::kAlternate);
  if (shape.vocabulary > kMostTokens) {
    throw Error(fmt::format("tokens have 16 bits: a vocabulary of {} is more than {}",
                            shape.vocabulary, kMostTokens));
  }
  if (shape.head_size() > kLargestHead) {
    throw Error(fmt::format("attention on a GPU has heads of at most {} channels, not {}",
                            kLargestHead, shape.head_size()));
  }
  places_ = PlaceStage(shape, range, batch_, recompute, sizeof(T));
  const size_t table = static_cast<size_t>(sequence_ * rotated_) * sizeof(float);
  cosines_ = tables_.Take(table);
  sines_ = tables_.Take(table);
}

template <class T>
int64_t DeviceNetwork<T>::PaddingBehind(int64_t head, int64_t size) const {
  return last_ ? std::max<int64_t>(head + places_.logit_stride * cols_ - size, 0) : 0;
}

template <class T>
void DeviceNetwork<T>::Begin(Stream stream, void* tables, void* scratch) {
  scratch_ = static_cast<std::byte*>(scratch);
  if (rotated_ == 0) return;
  const RotaryTables<float> rotary = MakeRotaryTables<float>(sequence_, 2 * rotated_);
  const size_t bytes = rotary.cosines.size() * sizeof(float);
  auto* cosines = reinterpret_cast<float*>(static_cast<std::byte*>(tables) + cosines_);
  auto* sines = reinterpret_cast<float*>(static_cast<std::byte*>(tables) + sines_);
  Copy(stream, bytes, rotary.cosines.data(), cosines);
  Copy(stream, bytes, rotary.sines.data(), sines);
  Wait(stream);
  block_.UseTables(cosines, sines);
}

template <class T>
void* DeviceNetwork<T>::Resolve(Place place, const Buffers& buffers) const {
  switch (place.in) {
    case Place::In::kSlot:
      return buffers.slot + place.offset;
    case Place::In::kKept:
      return buffers.kept + place.offset;
    case Place::In::kScratch:
      break;
  }
  return scratch_ + place.offset;
}

template <class T>
template <size_t kCount>
std::array<void*, kCount> DeviceNetwork<T>::ResolveAll(const std::array<Place, kCount>& places,
                                                       const Buffers& buffers) const {
  std::array<void*, kCount> pointers{};
  for (size_t i = 0; i < kCount; ++i) pointers[i] = Resolve(places[i], buffers);
  return pointers;
}

template <class T>
T* DeviceNetwork<T>::StreamIn(size_t block, const Buffers& buffers) const {
  return static_cast<T*>(Resolve(places_.streams[block], buffers));
}

template <class T>
BlockTools<T> DeviceNetwork<T>::Tools(Stream stream) const {
  const auto floats = [&](size_t offset) { return reinterpret_cast<float*>(scratch_ + offset); };
  return {.linear = {products_, stream, floats(places_.scratch_at.column_sums)},
          .narrow = reinterpret_cast<T*>(scratch_ + places_.scratch_at.narrow),
          .activated = reinterpret_cast<T*>(scratch_ + places_.scratch_at.activated),
          .row_dots = floats(places_.scratch_at.row_dots),
          .norm_sums = floats(places_.scratch_at.norm_sums)};
}

template <class T>
BlockGradients<T> DeviceNetwork<T>::KeptGradients(size_t block, std::byte* kept) const {
  BlockGradients<T> gradients{};
  for (size_t g = 0; g < gradients.size(); ++g) {
    gradients[g] = reinterpret_cast<T*>(kept + places_.kept_gradients[block][g]);
  }
  return gradients;
}

template <class T>
void DeviceNetwork<T>::Forward(Stream stream, const Weights<T>& weights, const Token* tokens,
                               const T* input, const Token* targets, void* activation, T* output,
                               double* loss) {
  const Buffers buffers = {.slot = static_cast<std::byte*>(activation)};
  T* x = StreamIn(0, buffers);
  if (first_) {
    EmbedForward(stream, tokens, batch_, sequence_, cols_, weights.masters + tensors_.token_table,
                 Optional(weights.masters, tensors_.position_table), x);
  } else {
    Copy(stream, places_.boundary_bytes, input, x);
  }
  const BlockTools<T> tools = Tools(stream);
  const size_t blocks = tensors_.blocks.size();
  for (size_t b = 0; b < blocks; ++b) {
    T* next = b + 1 < blocks || last_ ? StreamIn(b + 1, buffers) : output;
    block_.Forward(tools, weights, tensors_.blocks[b], x,
                   ResolveAll(places_.whole.blocks[b], buffers), next);
    x = next;
  }
  if (last_) Head(stream, weights, targets, x, ResolveAll(places_.whole.head, buffers), loss);
}

template <class T>
void DeviceNetwork<T>::FinalNorm(Stream stream, const Weights<T>& weights, const T* input,
                                 const HeadPointers& to) const {
  NormForward(stream, norm_, rows_, cols_, input, weights.masters + tensors_.final_gain,
              Optional(weights.masters, tensors_.final_shift), static_cast<float*>(to[kFinalMean]),
              static_cast<float*>(to[kFinalDeviation]), static_cast<T*>(to[kFinalNorm]));
}

template <class T>
void DeviceNetwork<T>::Head(Stream stream, const Weights<T>& weights, const Token* targets,
                            const T* input, const HeadPointers& to, double* loss) const {
  FinalNorm(stream, weights, input, to);
  T* logits = static_cast<T*>(to[kLogitGradient]);
  LinearForward<T>(Tools(stream).linear, HeadSize(), static_cast<const T*>(to[kFinalNorm]),
                   {.weight = weights.values + tensors_.head}, logits);
  auto* log_sums = reinterpret_cast<float*>(scratch_ + places_.scratch_at.log_sums);
  CrossEntropyForward(stream, rows_, vocabulary_, places_.logit_stride, targets, logits, log_sums,
                      reinterpret_cast<double*>(scratch_ + places_.scratch_at.row_losses), loss);
  CrossEntropyBackward(stream, rows_, vocabulary_, places_.logit_stride, targets, logits, log_sums,
                       1.0f, logits);
}

template <class T>
void DeviceNetwork<T>::HeadBackwardInput(Stream stream, const ResultPlaces& places,
                                         const Weights<T>& weights, const Token* targets,
                                         float loss_scale, const Buffers& buffers, T* norm_gradient,
                                         T* stream_gradient) const {
  const T* input = StreamIn(tensors_.blocks.size(), buffers);
  const HeadPointers from = ResolveAll(places.head, buffers);
  if (recompute_ == Recompute::kFull) {
    Head(stream, weights, targets, input, from,
         reinterpret_cast<double*>(scratch_ + places_.scratch_at.unread_loss));
  } else if (recompute_ == Recompute::kSelective) {
    FinalNorm(stream, weights, input, from);
  }
  LinearBackwardInput(Tools(stream).linear, HeadSize(), loss_scale,
                      static_cast<const T*>(from[kLogitGradient]), weights.values + tensors_.head,
                      0, norm_gradient);
  NormBackwardInput<T>(stream, norm_, rows_, cols_, norm_gradient, input,
                       weights.masters + tensors_.final_gain,
                       static_cast<const float*>(from[kFinalMean]),
                       static_cast<const float*>(from[kFinalDeviation]), nullptr, stream_gradient);
}

template <class T>
void DeviceNetwork<T>::HeadBackwardWeight(Stream stream, const ResultPlaces& places,
                                          const Buffers& buffers, float loss_scale,
                                          const T* norm_gradient, float* gradients) const {
  const HeadPointers from = ResolveAll(places.head, buffers);
  const BlockTools<T> tools = Tools(stream);
  LinearBackwardWeight(
      tools.linear, HeadSize(), loss_scale, static_cast<const T*>(from[kLogitGradient]),
      static_cast<const T*>(from[kFinalNorm]), gradients + tensors_.head_gradient, nullptr);
  NormBackwardWeight(stream, norm_, rows_, cols_, norm_gradient,
                     static_cast<const T*>(StreamIn(tensors_.blocks.size(), buffers)),
                     static_cast<const float*>(from[kFinalMean]),
                     static_cast<const float*>(from[kFinalDeviation]), tools.norm_sums,
                     gradients + tensors_.final_gain, Optional(gradients, tensors_.final_shift));
}

template <class T>
void DeviceNetwork<T>::EmbedBackwardTo(Stream stream, const Token* tokens, const T* x_gradient,
                                       float* gradients) const {
  EmbedBackward(stream, tokens, batch_, sequence_, cols_, x_gradient,
                scratch_ + places_.scratch_at.embed, gradients + tensors_.token_table,
                Optional(gradients, tensors_.position_table));
}

template <class T>
void DeviceNetwork<T>::Backward(Stream stream, const Weights<T>& weights, const void* activation,
                                const Token* tokens, const Token* targets, const T* output_gradient,
                                float loss_scale, T* input_gradient, float* gradients) {
  const Buffers buffers = {.slot = ReadOnly(activation)};
  const BlockTools<T> tools = Tools(stream);
  const auto stream_gradient = [&](size_t block) {
    return reinterpret_cast<T*>(scratch_ + places_.scratch_at.stream_gradients[block % 2]);
  };
  BlockGradients<T> inside{};
  for (size_t g = 0; g < inside.size(); ++g) {
    inside[g] = reinterpret_cast<T*>(scratch_ + places_.scratch_at.block_gradients[g]);
  }
  const size_t blocks = tensors_.blocks.size();
  const T* of_output = output_gradient;
  if (last_) {
    T* of_stream = stream_gradient(blocks);
    HeadBackwardInput(stream, places_.whole, weights, targets, loss_scale, buffers,
                      inside[kOfNorm1], of_stream);
    HeadBackwardWeight(stream, places_.whole, buffers, loss_scale, inside[kOfNorm1], gradients);
    of_output = of_stream;
  }
  for (size_t b = blocks; b-- > 0;) {
    const BlockTensors& at = tensors_.blocks[b];
    const BlockResults results = ResolveAll(places_.whole.blocks[b], buffers);
    const T* x = StreamIn(b, buffers);
    T* of_input = b == 0 && !first_ ? input_gradient : stream_gradient(b);
    block_.Recalculate(tools, weights, at, x, results);
    block_.BackwardInput(tools, weights, at, x, results, of_output, inside, of_input);
    block_.BackwardWeight(tools, at, x, results, of_output, inside, gradients);
    of_output = of_input;
  }
  if (first_) EmbedBackwardTo(stream, tokens, of_output, gradients);
}

template <class T>
void DeviceNetwork<T>::BackwardInput(Stream stream, const Weights<T>& weights,
                                     const void* activation, const Token* targets,
                                     const T* output_gradient, float loss_scale, T* input_gradient,
                                     void* kept) {
  const Buffers buffers = {.slot = ReadOnly(activation), .kept = static_cast<std::byte*>(kept)};
  const BlockTools<T> tools = Tools(stream);
  const auto kept_at = [&](size_t offset) { return reinterpret_cast<T*>(buffers.kept + offset); };
  const size_t blocks = tensors_.blocks.size();
  T* of_output = kept_at(places_.kept_outputs.back());
  if (last_) {
    HeadBackwardInput(stream, places_.halves, weights, targets, loss_scale, buffers,
                      kept_at(places_.kept_final_norm), of_output);
  } else {
    Copy(stream, places_.boundary_bytes, output_gradient, of_output);
  }
  for (size_t b = blocks; b-- > 0;) {
    const BlockTensors& at = tensors_.blocks[b];
    const BlockResults results = ResolveAll(places_.halves.blocks[b], buffers);
    const T* x = StreamIn(b, buffers);
    T* of_input = input_gradient;
    if (b > 0) {
      of_input = kept_at(places_.kept_outputs[b - 1]);
    } else if (first_) {
      of_input = kept_at(places_.kept_input);
    }
    block_.Recalculate(tools, weights, at, x, results);
    block_.BackwardInput(tools, weights, at, x, results, of_output, KeptGradients(b, buffers.kept),
                         of_input);
    of_output = of_input;
  }
}

template <class T>
void DeviceNetwork<T>::BackwardWeight(Stream stream, const void* activation, const Token* tokens,
                                      const void* kept, float loss_scale, float* gradients) {
  const Buffers buffers = {.slot = ReadOnly(activation), .kept = ReadOnly(kept)};
  const BlockTools<T> tools = Tools(stream);
  const auto kept_at = [&](size_t offset) {
    return reinterpret_cast<const T*>(buffers.kept + offset);
  };
  if (last_) {
    HeadBackwardWeight(stream, places_.halves, buffers, loss_scale,
                       kept_at(places_.kept_final_norm), gradients);
  }
  for (size_t b = tensors_.blocks.size(); b-- > 0;) {
    block_.BackwardWeight(tools, tensors_.blocks[b], StreamIn(b, buffers),
                          ResolveAll(places_.halves.blocks[b], buffers),
                          kept_at(places_.kept_outputs[b]), KeptGradients(b, buffers.kept),
                          gradients);
  }
  if (first_) EmbedBackwardTo(stream, tokens, kept_at(places_.kept_input), gradients);
}

template class DeviceNetwork<float>;
template class DeviceNetwork<Bfloat16>;

}  // namespace pipelag::cuda
