// A block's passes in order, and the sizes of what they leave.
#include "runtime/network/block.h"

#include <algorithm>

#include "models/error.h"
#include "runtime/network/kernels.h"
#include "runtime/network/layout.h"
#include "runtime/network/linear.h"

namespace pipelag {
namespace {

template <class T>
T* Optional(T* buffer, int64_t offset) {
  return offset < 0 ? nullptr : buffer + offset;
}

}  // namespace

int64_t Places::Take(int64_t elements) {
  constexpr int64_t kAlignment = StageLayout::kAlignment;
  const int64_t offset = next_;
  next_ += (elements + kAlignment - 1) / kAlignment * kAlignment;
  return offset;
}

bool IsDropped(BlockResult result, Recompute recompute) {
  if (recompute != Recompute::kSelective) return recompute == Recompute::kFull;
  return result != kQkv && result != kAttended && result != kMiddle && result != kHidden;
}

bool WeightsNeed(BlockResult result) {
  return result != kQkv && result != kProbabilities && result != kHidden;
}

template <class Real>
NetworkBlock<Real>::NetworkBlock(const NetworkShape& shape, int64_t batch, Products<Real>& products)
    : products_(&products),
      rows_(batch * shape.sequence),
      cols_(shape.hidden),
      norm_{shape.norm, rows_, cols_},
      attention_(shape, batch, products),
      mlp_(shape, rows_, products) {}

template <class Real>
int64_t NetworkBlock<Real>::ElementsOf(BlockResult result) const {
  switch (result) {
    case kMean1:
    case kDeviation1:
    case kMean2:
    case kDeviation2:
      return rows_;
    case kNorm1:
    case kAttended:
    case kMiddle:
    case kNorm2:
      return rows_ * cols_;
    case kQkv:
      return rows_ * attention_.qkv_cols();
    case kProbabilities:
      return attention_.probability_elements();
    case kHidden:
      return rows_ * mlp_.hidden_cols();
    case kActivated:
      return rows_ * mlp_.inner_size();
    case kBlockResults:
      break;
  }
  CHECK(false);
}

template <class Real>
int64_t NetworkBlock<Real>::ElementsOf(BlockGradient gradient) const {
  if (gradient == kOfHidden) return ElementsOf(kHidden);
  if (gradient == kOfQkv) return ElementsOf(kQkv);
  return rows_ * cols_;
}

template <class Real>
void NetworkBlock<Real>::Attend(const Real* weights, const BlockTensors& at, const Real* input,
                                const BlockPointers<Real>& to) const {
  norm_.Forward(input, weights + at.norm1_gain, Optional(weights, at.norm1_shift), to[kMean1],
                to[kDeviation1], to[kNorm1]);
  attention_.Forward(weights, at.attention, to[kNorm1], to[kQkv], to[kProbabilities],
                     to[kAttended]);
  LinearForward(*products_, rows_, cols_, cols_, to[kAttended], weights + at.projection,
                to[kMiddle]);
  AddBiasAndResidual(rows_, cols_, Optional(weights, at.projection_bias), input, to[kMiddle]);
  norm_.Forward(to[kMiddle], weights + at.norm2_gain, Optional(weights, at.norm2_shift), to[kMean2],
                to[kDeviation2], to[kNorm2]);
}

template <class Real>
void NetworkBlock<Real>::Forward(const Real* weights, const BlockTensors& at, const Real* input,
                                 const BlockPointers<Real>& to, Real* output) const {
  Attend(weights, at, input, to);
  mlp_.Forward(weights, at.mlp, to[kNorm2], to[kHidden], to[kActivated]);
  mlp_.Down(weights, at.mlp, to[kActivated], output);
  AddBiasAndResidual(rows_, cols_, Optional(weights, at.mlp.down_bias), to[kMiddle], output);
}

template <class Real>
void NetworkBlock<Real>::Recalculate(Recompute recompute, const Real* weights,
                                     const BlockTensors& at, const Real* input,
                                     const BlockPointers<const Real>& from,
                                     const BlockPointers<Real>& to) const {
  if (recompute == Recompute::kNone) return;
  if (recompute == Recompute::kFull) {
    Attend(weights, at, input, to);
    mlp_.Forward(weights, at.mlp, to[kNorm2], to[kHidden], to[kActivated]);
    return;
  }
  norm_.Forward(input, weights + at.norm1_gain, Optional(weights, at.norm1_shift), to[kMean1],
                to[kDeviation1], to[kNorm1]);
  attention_.Probabilities(from[kQkv], to[kProbabilities]);
  norm_.Forward(from[kMiddle], weights + at.norm2_gain, Optional(weights, at.norm2_shift),
                to[kMean2], to[kDeviation2], to[kNorm2]);
  mlp_.Activate(from[kHidden], to[kActivated]);
}

template <class Real>
void NetworkBlock<Real>::Backward(const Real* weights, const BlockTensors& at, const Real* input,
                                  const BlockPointers<const Real>& from, Real* stream_gradient,
                                  Real* wide, Real* narrow, Real* gradients) {
  mlp_.Backward(weights, at.mlp, from[kNorm2], from[kHidden], from[kActivated], stream_gradient,
                wide, narrow, gradients);
  norm_.Backward(narrow, from[kMiddle], weights + at.norm2_gain, from[kMean2], from[kDeviation2],
                 stream_gradient, gradients + at.norm2_gain, Optional(gradients, at.norm2_shift));

  AddColumnSums(rows_, cols_, stream_gradient, Optional(gradients, at.projection_bias));
  LinearBackwardWeight(*products_, rows_, cols_, cols_, stream_gradient, from[kAttended],
                       gradients + at.projection);
  LinearBackwardInput(*products_, rows_, cols_, cols_, stream_gradient, weights + at.projection,
                      narrow, Gradient::kAsBefore);
  attention_.BackwardInput(weights, at.attention, from[kQkv], from[kProbabilities], narrow, wide,
                           narrow);
  attention_.BackwardWeight(at.attention, wide, from[kNorm1], gradients, Gradient::kAsBefore);
  norm_.Backward(narrow, input, weights + at.norm1_gain, from[kMean1], from[kDeviation1],
                 stream_gradient, gradients + at.norm1_gain, Optional(gradients, at.norm1_shift));
}

template <class Real>
void NetworkBlock<Real>::BackwardInput(const Real* weights, const BlockTensors& at,
                                       const Real* input, const BlockPointers<const Real>& from,
                                       Real* stream_gradient, Real* narrow, const Gradients& kept) {
  const int64_t elements = rows_ * cols_;
  std::copy(stream_gradient, stream_gradient + elements, kept[kOfOutput]);
  mlp_.BackwardInput(weights, at.mlp, from[kHidden], stream_gradient, kept[kOfHidden],
                     kept[kOfNorm2]);
  norm_.BackwardInput(kept[kOfNorm2], from[kMiddle], weights + at.norm2_gain, from[kMean2],
                      from[kDeviation2], stream_gradient);

  std::copy(stream_gradient, stream_gradient + elements, kept[kOfMiddle]);
  LinearBackwardInput(*products_, rows_, cols_, cols_, stream_gradient, weights + at.projection,
                      narrow);
  attention_.BackwardInput(weights, at.attention, from[kQkv], from[kProbabilities], narrow,
                           kept[kOfQkv], kept[kOfNorm1]);
  norm_.BackwardInput(kept[kOfNorm1], input, weights + at.norm1_gain, from[kMean1],
                      from[kDeviation1], stream_gradient);
}

template <class Real>
void NetworkBlock<Real>::BackwardWeight(const BlockTensors& at, const Real* input,
                                        const BlockPointers<const Real>& from,
                                        const std::array<const Real*, kBlockGradients>& kept,
                                        Real* gradients) const {
  mlp_.BackwardWeight(at.mlp, from[kNorm2], from[kActivated], kept[kOfOutput], kept[kOfHidden],
                      gradients);
  norm_.BackwardWeight(kept[kOfNorm2], from[kMiddle], from[kMean2], from[kDeviation2],
                       gradients + at.norm2_gain, Optional(gradients, at.norm2_shift));
  AddColumnSums(rows_, cols_, kept[kOfMiddle], Optional(gradients, at.projection_bias));
  LinearBackwardWeight(*products_, rows_, cols_, cols_, kept[kOfMiddle], from[kAttended],
                       gradients + at.projection);
  attention_.BackwardWeight(at.attention, kept[kOfQkv], from[kNorm1], gradients);
  norm_.BackwardWeight(kept[kOfNorm1], input, from[kMean1], from[kDeviation1],
                       gradients + at.norm1_gain, Optional(gradients, at.norm1_shift));
}

template class NetworkBlock<float>;
template class NetworkBlock<double>;

}  // namespace pipelag
