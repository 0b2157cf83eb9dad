#include "runtime/network/stage.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "models/error.h"
#include "runtime/network/kernels.h"
#include "runtime/network/linear.h"

namespace pipelag {
namespace {

template <class T>
T* Optional(T* buffer, int64_t offset) {
  return offset < 0 ? nullptr : buffer + offset;
}

}  // namespace

template <class Real>
StageNetwork<Real>::StageNetwork(const NetworkShape& shape, LayerRange range, int microbatch_size,
                                 Recompute recompute, ProductPrecision precision)
    : layout_(shape, range),
      recompute_(recompute),
      first_(range.first == 0),
      last_(range.last == shape.layers),
      batch_(microbatch_size),
      sequence_(shape.sequence),
      cols_(shape.hidden),
      rows_(batch_ * sequence_),
      vocabulary_(shape.vocabulary),
      products_(std::make_unique<Products<Real>>(precision)),
      block_(shape, batch_, *products_),
      tensors_(FindTensors(layout_, shape, range)) {
  CHECK(microbatch_size >= 1);
  CHECK(recompute != Recompute::kAlternate);
  if (shape.vocabulary > kMostTokens) {
    throw Error(fmt::format("tokens have 16 bits: a vocabulary of {} is more than {}",
                            shape.vocabulary, kMostTokens));
  }
  const int layers = range.last - range.first;
  PlaceGradients(layers);
  PlaceResults(layers);
  const int64_t widest = std::max(
      {block_.ElementsOf(kQkv), block_.ElementsOf(kHidden), last_ ? rows_ * vocabulary_ : 0});
  wide_.resize(static_cast<size_t>(widest));
  narrow_.resize(static_cast<size_t>(rows_ * cols_));
  stream_.resize(first_ ? static_cast<size_t>(rows_ * cols_) : 0);
}

template <class Real>
void StageNetwork<Real>::PlaceGradients(int layers) {
  for (int layer = 0; layer < layers; ++layer) {
    auto& block = kept_gradients_.emplace_back();
    for (uint8_t g = 0; g < kBlockGradients; ++g) {
      block[g] = kept_.Take(block_.ElementsOf(static_cast<BlockGradient>(g)));
    }
  }
  if (first_) kept_input_ = kept_.Take(rows_ * cols_);
  if (last_) {
    kept_logits_ = kept_.Take(rows_ * vocabulary_);
    kept_final_norm_ = kept_.Take(rows_ * cols_);
  }
}

template <class Real>
void StageNetwork<Real>::PlaceResults(int layers) {
  Places scratch;
  // For the backward in one, and for that in halves.
  const auto place = [&](bool dropped, bool weights_need, int64_t elements,
                         int64_t in_scratch) -> std::pair<Place, Place> {
    if (!dropped) {
      const Place stays{Place::In::kSlot, slot_.Take(elements)};
      return {stays, stays};
    }
    const Place passing{Place::In::kScratch, in_scratch};
    if (!weights_need) return {passing, passing};
    return {passing, {Place::In::kKept, kept_.Take(elements)}};
  };
  // Blocks are computed again one at a time, in the same scratch.
  std::array<int64_t, kBlockResults> in_scratch{};
  for (uint8_t r = 0; r < kBlockResults; ++r) {
    const auto result = static_cast<BlockResult>(r);
    if (IsDropped(result, recompute_)) in_scratch[r] = scratch.Take(block_.ElementsOf(result));
  }
  for (int layer = 0; layer < layers; ++layer) {
    streams_.push_back({Place::In::kSlot, slot_.Take(rows_ * cols_)});
    BlockPlaces& whole = whole_.blocks.emplace_back();
    BlockPlaces& halves = halves_.blocks.emplace_back();
    for (uint8_t r = 0; r < kBlockResults; ++r) {
      const auto result = static_cast<BlockResult>(r);
      std::tie(whole[r], halves[r]) = place(IsDropped(result, recompute_), WeightsNeed(result),
                                            block_.ElementsOf(result), in_scratch[r]);
    }
  }
  if (!last_ && recompute_ != Recompute::kNone) {
    streams_.push_back({Place::In::kScratch, scratch.Take(rows_ * cols_)});
  } else {
    streams_.push_back({Place::In::kSlot, slot_.Take(rows_ * cols_)});
  }
  for (uint8_t r = 0; last_ && r < kHeadResults; ++r) {
    const bool probabilities = r == kTokenProbabilities;
    const bool dropped =
        recompute_ == Recompute::kFull || (recompute_ == Recompute::kSelective && !probabilities);
    const int64_t elements = ElementsOf(static_cast<HeadResult>(r));
    const int64_t offset = dropped ? scratch.Take(elements) : 0;
    std::tie(whole_.head[r], halves_.head[r]) = place(dropped, !probabilities, elements, offset);
  }
  scratch_.resize(static_cast<size_t>(scratch.size()));
}

template <class Real>
int64_t StageNetwork<Real>::ElementsOf(HeadResult result) const {
  if (result == kTokenProbabilities) return rows_ * vocabulary_;
  return result == kFinalNorm ? rows_ * cols_ : rows_;
}

template <class Real>
template <class T>
T* StageNetwork<Real>::Resolve(Place place, T* slot, T* kept) {
  switch (place.in) {
    case Place::In::kSlot:
      return slot == nullptr ? nullptr : slot + place.offset;
    case Place::In::kKept:
      return kept == nullptr ? nullptr : kept + place.offset;
    case Place::In::kScratch:
      break;
  }
  return scratch_.data() + place.offset;
}

template <class Real>
template <class T, size_t kCount>
std::array<T*, kCount> StageNetwork<Real>::ResolveAll(const std::array<Place, kCount>& places,
                                                      T* slot, T* kept) {
  std::array<T*, kCount> pointers{};
  for (size_t i = 0; i < kCount; ++i) pointers[i] = Resolve(places[i], slot, kept);
  return pointers;
}

template <class Real>
BlockPointers<const Real> StageNetwork<Real>::Recovered(const Plan& plan, size_t b,
                                                        const Real* weights, const Real* activation,
                                                        Real* kept) {
  const auto from = ResolveAll<const Real>(plan.blocks[b], activation, kept);
  const auto to = ResolveAll<Real>(plan.blocks[b], nullptr, kept);
  block_.Recalculate(recompute_, weights, tensors_.blocks[b], StreamIn(b, activation), from, to);
  return from;
}

template <class Real>
std::array<const Real*, StageNetwork<Real>::kHeadResults> StageNetwork<Real>::RecoveredHead(
    const Plan& plan, const Real* weights, const Real* activation, const Token* targets,
    Real* kept) {
  const auto to = ResolveAll<Real>(plan.head, nullptr, kept);
  if (recompute_ != Recompute::kNone) {
    FinalNorm(weights, StreamIn(tensors_.blocks.size(), activation), to);
  }
  if (recompute_ == Recompute::kFull) PredictTokens(weights, targets, to);
  return ResolveAll<const Real>(plan.head, activation, kept);
}

template <class Real>
double StageNetwork<Real>::Forward(const Real* weights, const Token* tokens, const Real* input,
                                   const Token* targets, Real* activation, Real* output) {
  Real* stream = Resolve<Real>(streams_.front(), activation, nullptr);
  if (first_) {
    EmbedForward(tokens, batch_, sequence_, cols_, weights + tensors_.token_table,
                 Optional(weights, tensors_.position_table), stream);
  } else {
    std::copy(input, input + boundary_elements(), stream);
  }
  for (size_t b = 0; b < tensors_.blocks.size(); ++b) {
    Real* next = Resolve<Real>(streams_[b + 1], activation, nullptr);
    block_.Forward(weights, tensors_.blocks[b], stream,
                   ResolveAll<Real>(whole_.blocks[b], activation, nullptr), next);
    stream = next;
  }
  if (!last_) {
    std::copy(stream, stream + boundary_elements(), output);
    return 0;
  }
  const auto to = ResolveAll<Real>(whole_.head, activation, nullptr);
  FinalNorm(weights, stream, to);
  return PredictTokens(weights, targets, to);
}

template <class Real>
void StageNetwork<Real>::FinalNorm(const Real* weights, const Real* stream,
                                   const std::array<Real*, kHeadResults>& to) const {
  block_.norm().Forward(stream, weights + tensors_.final_gain,
                        Optional(weights, tensors_.final_shift), to[kFinalMean],
                        to[kFinalDeviation], to[kFinalNorm]);
}

template <class Real>
double StageNetwork<Real>::PredictTokens(const Real* weights, const Token* targets,
                                         const std::array<Real*, kHeadResults>& to) const {
  LinearForward(*products_, rows_, cols_, vocabulary_, to[kFinalNorm], weights + tensors_.head,
                to[kTokenProbabilities]);
  return CrossEntropyForward(rows_, vocabulary_, targets, to[kTokenProbabilities]);
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
  for (size_t b = tensors_.blocks.size(); b-- > 0;) {
    const auto from = Recovered(whole_, b, weights, activation, nullptr);
    block_.Backward(weights, tensors_.blocks[b], StreamIn(b, activation), from, stream_gradient,
                    wide_.data(), narrow_.data(), gradients);
  }
  if (first_) {
    EmbedBackward(tokens, batch_, sequence_, cols_, stream_gradient,
                  gradients + tensors_.token_table, Optional(gradients, tensors_.position_table));
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
  for (size_t b = tensors_.blocks.size(); b-- > 0;) {
    const auto from = Recovered(halves_, b, weights, activation, kept);
    std::array<Real*, kBlockGradients> to{};
    for (size_t g = 0; g < to.size(); ++g) to[g] = kept + kept_gradients_[b][g];
    block_.BackwardInput(weights, tensors_.blocks[b], StreamIn(b, activation), from,
                         stream_gradient, narrow_.data(), to);
  }
}

template <class Real>
void StageNetwork<Real>::BackwardWeight(const Real* activation, const Token* tokens,
                                        const Real* kept, Real* gradients) {
  if (last_) {
    const auto from = ResolveAll<const Real>(halves_.head, activation, kept);
    LinearBackwardWeight(*products_, rows_, cols_, vocabulary_, kept + kept_logits_,
                         from[kFinalNorm], gradients + tensors_.head_gradient);
    block_.norm().BackwardWeight(kept + kept_final_norm_,
                                 StreamIn(tensors_.blocks.size(), activation), from[kFinalMean],
                                 from[kFinalDeviation], gradients + tensors_.final_gain,
                                 Optional(gradients, tensors_.final_shift));
  }
  for (size_t b = tensors_.blocks.size(); b-- > 0;) {
    std::array<const Real*, kBlockGradients> of{};
    for (size_t g = 0; g < of.size(); ++g) of[g] = kept + kept_gradients_[b][g];
    block_.BackwardWeight(tensors_.blocks[b], StreamIn(b, activation),
                          ResolveAll<const Real>(halves_.blocks[b], activation, kept), of,
                          gradients);
  }
  if (first_) {
    EmbedBackward(tokens, batch_, sequence_, cols_, kept + kept_input_,
                  gradients + tensors_.token_table, Optional(gradients, tensors_.position_table));
  }
}

template <class Real>
void StageNetwork<Real>::HeadBackward(const Real* weights, const Real* activation,
                                      const Token* targets, Real loss_scale, Real* stream_gradient,
                                      Real* gradients) {
  const auto from = RecoveredHead(whole_, weights, activation, targets, nullptr);
  Real* logits = wide_.data();
  CrossEntropyBackward(rows_, vocabulary_, from[kTokenProbabilities], targets, loss_scale, logits);
  LinearBackwardWeight(*products_, rows_, cols_, vocabulary_, logits, from[kFinalNorm],
                       gradients + tensors_.head_gradient);
  LinearBackwardInput(*products_, rows_, cols_, vocabulary_, logits, weights + tensors_.head,
                      narrow_.data(), Gradient::kAsBefore);
  std::fill(stream_gradient, stream_gradient + boundary_elements(), Real{0});
  block_.norm().Backward(narrow_.data(), StreamIn(tensors_.blocks.size(), activation),
                         weights + tensors_.final_gain, from[kFinalMean], from[kFinalDeviation],
                         stream_gradient, gradients + tensors_.final_gain,
                         Optional(gradients, tensors_.final_shift));
}

template <class Real>
void StageNetwork<Real>::HeadBackwardInput(const Real* weights, const Real* activation,
                                           const Token* targets, Real loss_scale,
                                           Real* stream_gradient, Real* kept) {
  const auto from = RecoveredHead(halves_, weights, activation, targets, kept);
  CrossEntropyBackward(rows_, vocabulary_, from[kTokenProbabilities], targets, loss_scale,
                       kept + kept_logits_);
  LinearBackwardInput(*products_, rows_, cols_, vocabulary_, kept + kept_logits_,
                      weights + tensors_.head, kept + kept_final_norm_);
  std::fill(stream_gradient, stream_gradient + boundary_elements(), Real{0});
  block_.norm().BackwardInput(kept + kept_final_norm_, StreamIn(tensors_.blocks.size(), activation),
                              weights + tensors_.final_gain, from[kFinalMean],
                              from[kFinalDeviation], stream_gradient);
}

template class StageNetwork<float>;
template class StageNetwork<double>;

}  // namespace pipelag
