// The network of one stage on a device, the counterpart of StageNetwork: tokens or a message in, a
// message or the loss out, and back. Knows no optimizer and no schedule.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "models/architecture/work.h"
#include "models/network.h"
#include "runtime/cuda/products.h"
#include "runtime/cuda/stage/block.h"
#include "runtime/cuda/stage/places.h"
#include "runtime/data/token.h"
#include "runtime/network/layout.h"
#include "runtime/network/stage_tensors.h"

namespace pipelag::cuda {

/// What DeviceStage says of its passes holds here. T: float or Bfloat16.
template <class T>
class DeviceNetwork {
 public:
  /// `products` is borrowed; its workspace is the caller's. Throws Error as StageNetwork does, and
  /// for heads larger than the attention kernel's.
  DeviceNetwork(const NetworkShape& shape, LayerRange range, int microbatch_size,
                Recompute recompute, Products& products);

  const StageLayout& layout() const { return layout_; }
  bool first() const { return first_; }
  bool last() const { return last_; }
  size_t activation_bytes() const { return places_.slot.size(); }
  size_t kept_bytes() const { return places_.kept.size(); }
  size_t message_bytes() const { return places_.boundary_bytes; }
  size_t scratch_bytes() const { return places_.scratch.size(); }
  size_t table_bytes() const { return tables_.size(); }
  /// Elements behind the layout of weights, which the head's products read as rows of its tensor,
  /// and behind that of gradients, to which they add zeros.
  int64_t weight_padding() const { return PaddingBehind(tensors_.head, layout_.size()); }
  int64_t gradient_padding() const {
    return PaddingBehind(tensors_.head_gradient, layout_.gradient_size());
  }

  /// Writes constants to `tables`, for good; may wait.
  void Begin(Stream stream, void* tables, void* scratch);

  void Forward(Stream stream, const Weights<T>& weights, const Token* tokens, const T* input,
               const Token* targets, void* activation, T* output, double* loss);
  void Backward(Stream stream, const Weights<T>& weights, const void* activation,
                const Token* tokens, const Token* targets, const T* output_gradient,
                float loss_scale, T* input_gradient, float* gradients);
  void BackwardInput(Stream stream, const Weights<T>& weights, const void* activation,
                     const Token* targets, const T* output_gradient, float loss_scale,
                     T* input_gradient, void* kept);
  void BackwardWeight(Stream stream, const void* activation, const Token* tokens, const void* kept,
                      float loss_scale, float* gradients);

 private:
  using HeadPointers = std::array<void*, kHeadResults>;
  /// Buffers of one call; those that a pass does not have are null. A slot is written by Forward
  /// alone.
  struct Buffers {
    std::byte* slot = nullptr;
    std::byte* kept = nullptr;
  };

  int64_t PaddingBehind(int64_t head, int64_t size) const;
  LinearSize HeadSize() const { return {rows_, cols_, places_.logit_stride, places_.logit_stride}; }
  void* Resolve(Place place, const Buffers& buffers) const;
  template <size_t kCount>
  std::array<void*, kCount> ResolveAll(const std::array<Place, kCount>& places,
                                       const Buffers& buffers) const;
  T* StreamIn(size_t block, const Buffers& buffers) const;
  BlockTools<T> Tools(Stream stream) const;
  BlockGradients<T> KeptGradients(size_t block, std::byte* kept) const;

  void Head(Stream stream, const Weights<T>& weights, const Token* targets, const T* input,
            const HeadPointers& to, double* loss) const;
  void FinalNorm(Stream stream, const Weights<T>& weights, const T* input,
                 const HeadPointers& to) const;
  /// Computes again what is dropped, then the gradients of the final norm's result and input.
  void HeadBackwardInput(Stream stream, const ResultPlaces& places, const Weights<T>& weights,
                         const Token* targets, float loss_scale, const Buffers& buffers,
                         T* norm_gradient, T* stream_gradient) const;
  void HeadBackwardWeight(Stream stream, const ResultPlaces& places, const Buffers& buffers,
                          float loss_scale, const T* norm_gradient, float* gradients) const;
  void EmbedBackwardTo(Stream stream, const Token* tokens, const T* x_gradient,
                       float* gradients) const;

  StageLayout layout_;
  StageTensors tensors_;
  Recompute recompute_;
  NormChoice norm_;
  bool first_;
  bool last_;
  int64_t batch_;
  int64_t sequence_;
  int64_t cols_;     ///< C
  int64_t rows_;     ///< B · T
  int64_t rotated_;  ///< half the size of a head, if positions are rotary; else 0
  int64_t vocabulary_;
  DeviceBlock<T> block_;
  Products& products_;
  StagePlaces places_;
  std::byte* scratch_ = nullptr;
  size_t cosines_ = 0;
  size_t sines_ = 0;
  BytePlaces tables_;
};

extern template class DeviceNetwork<float>;
extern template class DeviceNetwork<Bfloat16>;

}  // namespace pipelag::cuda
