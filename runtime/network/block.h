// One block of a network: attention and MLP, each behind a norm and beside the residual stream; and
// what of its results is kept where between its forward and its backward. Knows pointers and sizes
// only, neither tokens nor the loss.
#pragma once

#include <array>
#include <cstdint>

#include "models/architecture/work.h"
#include "models/network.h"
#include "runtime/network/attention.h"
#include "runtime/network/feed_forward.h"
#include "runtime/network/norm.h"
#include "runtime/network/stage_tensors.h"

namespace pipelag {

/// Hands out offsets, aligned as tensors are.
class Places {
 public:
  int64_t Take(int64_t elements);
  int64_t size() const { return next_; }

 private:
  int64_t next_ = 0;
};

/// What a block computes on its way; its input and output are not among them.
enum BlockResult : uint8_t {
  kMean1,
  kDeviation1,
  kNorm1,
  kQkv,
  kProbabilities,
  kAttended,
  kMiddle,  ///< the residual stream after attention
  kMean2,
  kDeviation2,
  kNorm2,
  kHidden,     ///< the MLP's first products
  kActivated,  ///< what its last product takes
  kBlockResults
};
template <class T>
using BlockPointers = std::array<T*, kBlockResults>;

/// Gradients of one block's results, from its input's backward to its weights'.
enum BlockGradient : uint8_t {
  kOfOutput,
  kOfHidden,
  kOfNorm2,
  kOfMiddle,
  kOfQkv,
  kOfNorm1,
  kBlockGradients
};

/// Whether `recompute` drops a result after the forward, to compute it again from the block's input
/// (full) or from products that stay (selective: norms, attention matrix, activation function).
bool IsDropped(BlockResult result, Recompute recompute);
/// Whether the gradient of the weights needs a result; that of the input needs the others.
bool WeightsNeed(BlockResult result);

template <class Real>
class NetworkBlock {
 public:
  using Gradients = std::array<Real*, kBlockGradients>;

  /// `products` are borrowed.
  NetworkBlock(const NetworkShape& shape, int64_t batch, Products<Real>& products);

  int64_t ElementsOf(BlockResult result) const;
  int64_t ElementsOf(BlockGradient gradient) const;
  const Norm<Real>& norm() const { return norm_; }

  void Forward(const Real* weights, const BlockTensors& at, const Real* input,
               const BlockPointers<Real>& to, Real* output) const;

  /// What Forward computed and `recompute` dropped, to the last bit; results that stayed are read
  /// from `from`, and `to` points to the others.
  void Recalculate(Recompute recompute, const Real* weights, const BlockTensors& at,
                   const Real* input, const BlockPointers<const Real>& from,
                   const BlockPointers<Real>& to) const;

  /// `stream_gradient`, that of the output, becomes that of the input. `wide` and `narrow` are
  /// scratch for the largest gradient and for (rows, C).
  void Backward(const Real* weights, const BlockTensors& at, const Real* input,
                const BlockPointers<const Real>& from, Real* stream_gradient, Real* wide,
                Real* narrow, Real* gradients);

  /// Its two halves, to the last bit the same; what lies between is kept in `kept`.
  void BackwardInput(const Real* weights, const BlockTensors& at, const Real* input,
                     const BlockPointers<const Real>& from, Real* stream_gradient, Real* narrow,
                     const Gradients& kept);
  void BackwardWeight(const BlockTensors& at, const Real* input,
                      const BlockPointers<const Real>& from,
                      const std::array<const Real*, kBlockGradients>& kept, Real* gradients) const;

 private:
  void Attend(const Real* weights, const BlockTensors& at, const Real* input,
              const BlockPointers<Real>& to) const;

  Products<Real>* products_;
  int64_t rows_;
  int64_t cols_;
  Norm<Real> norm_;
  Attention<Real> attention_;
  FeedForward<Real> mlp_;
};

extern template class NetworkBlock<float>;
extern template class NetworkBlock<double>;

}  // namespace pipelag
