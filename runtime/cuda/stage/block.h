// One block of a network on a device: attention and MLP, each behind a norm and beside the residual
// stream, the counterpart of NetworkBlock. Knows pointers and sizes only, neither tokens nor loss.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "models/architecture/work.h"
#include "models/network.h"
#include "runtime/cuda/kernels/attention.h"
#include "runtime/cuda/stage/linear.h"
#include "runtime/cuda/stage/places.h"
#include "runtime/network/stage_tensors.h"

namespace pipelag::cuda {

/// One version of a stage's weights.
template <class T>
struct Weights {
  const float* masters = nullptr;  ///< in the layout
  const T* values = nullptr;       ///< likewise: the masters themselves, or their copies in bf16
};

using BlockResults = std::array<void*, kBlockResults>;
template <class T>
using BlockGradients = std::array<T*, kBlockGradients>;

/// What a block computes with: products, and scratch of use within one call that all blocks share.
template <class T>
struct BlockTools {
  LinearTools linear;          ///< sums for LinearScratch of the widest layer
  T* narrow = nullptr;         ///< (rows, C)
  T* activated = nullptr;      ///< (rows, inner size), for SwiGLU
  float* row_dots = nullptr;   ///< one per row and head
  float* norm_sums = nullptr;  ///< NormScratch

  Stream stream() const { return linear.stream; }
};

/// T: float or Bfloat16.
template <class T>
class DeviceBlock {
 public:
  DeviceBlock(const NetworkShape& shape, int64_t batch, Recompute recompute);

  /// RotaryTables on the device, where positions are rotary.
  void UseTables(const float* cosines, const float* sines) {
    cosines_ = cosines;
    sines_ = sines;
  }

  void Forward(const BlockTools<T>& tools, const Weights<T>& weights, const BlockTensors& at,
               const T* input, const BlockResults& to, T* output) const;

  /// What Forward computed and the recomputation dropped, to the last bit, into `results`, which
  /// has the others.
  void Recalculate(const BlockTools<T>& tools, const Weights<T>& weights, const BlockTensors& at,
                   const T* input, const BlockResults& results) const;

  /// Writes all of `kept` and the input's gradient, which overlaps none of the others.
  void BackwardInput(const BlockTools<T>& tools, const Weights<T>& weights, const BlockTensors& at,
                     const T* input, const BlockResults& results, const T* output_gradient,
                     const BlockGradients<T>& kept, T* input_gradient) const;

  /// Adds to `gradients`, in the layout.
  void BackwardWeight(const BlockTools<T>& tools, const BlockTensors& at, const T* input,
                      const BlockResults& results, const T* output_gradient,
                      const BlockGradients<T>& kept, float* gradients) const;

 private:
  /// Some neighbouring outputs of one product: a matrix, or several that lie one behind the other
  /// without a gap and are one to a product.
  struct Piece {
    int64_t weight = -1;
    int64_t bias = -1;
    int64_t first = 0;  ///< column of the result
    int64_t cols = 0;
  };
  std::vector<Piece> AttentionPieces(const AttentionTensors& at) const;
  std::vector<Piece> UpPieces(const FeedForwardTensors& at) const;
  std::vector<Piece> Merged(const std::vector<Piece>& pieces) const;

  LinearWeights<T> WeightsAt(const Weights<T>& weights, int64_t weight, int64_t bias) const;
  void NormTo(const BlockTools<T>& tools, const Weights<T>& weights, int64_t gain, int64_t shift,
              const T* x, const BlockResults& to, BlockResult first) const;
  void Attend(const BlockTools<T>& tools, const Weights<T>& weights, const BlockTensors& at,
              const T* input, const BlockResults& to) const;
  void Up(const BlockTools<T>& tools, const Weights<T>& weights, const FeedForwardTensors& at,
          const BlockResults& to) const;
  void PiecesForward(const LinearTools& tools, const Weights<T>& weights,
                     const std::vector<Piece>& pieces, int64_t stride, const T* x, T* y) const;
  void PiecesBackwardInput(const LinearTools& tools, const Weights<T>& weights,
                           const std::vector<Piece>& pieces, int64_t stride, const T* y_gradient,
                           T* x_gradient) const;
  void PiecesBackwardWeight(const LinearTools& tools, const std::vector<Piece>& pieces,
                            int64_t stride, const T* y_gradient, const T* x,
                            float* gradients) const;

  Recompute recompute_;
  NormChoice norm_;
  bool gated_;
  int64_t rows_;
  int64_t cols_;
  int64_t inner_;
  AttentionShape attention_;
  const float* cosines_ = nullptr;  ///< null: positions are not rotary
  const float* sines_ = nullptr;
};

extern template class DeviceBlock<float>;
extern template class DeviceBlock<Bfloat16>;

}  // namespace pipelag::cuda
