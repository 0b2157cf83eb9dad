// One stage of a network: what a micro-batch goes through forward and backward, over one buffer of
// weights, one of gradients and one activation slot per micro-batch in flight. Knows no schedule,
// rank, thread or optimizer.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "models/network.h"
#include "runtime/data/token.h"
#include "runtime/network/block.h"
#include "runtime/network/layout.h"

namespace pipelag {

/// By default a GPT-2 (Radford et al., 2019). A block: x + proj(attention(norm(x))), then
/// x + mlp(norm(x)), see block.h. After the last block a norm, then logits = x · lm_headᵀ, then the
/// cross-entropy with the targets.
///
/// All buffers are the caller's; who writes weights says so (WeightsWritten). A slot is written by
/// one Forward and read by the Backward of the same micro-batch, or by its BackwardInput and
/// BackwardWeight; slots, weights and gradients of different calls may differ. The object holds
/// scratch only: one per rank, used by one thread at a time, after PrepareThread(); results do not
/// depend on which. Nothing is allocated after construction but what products in bf16 are prepared
/// with, once per shape. Boundary tensors are (B, T, C). Real is float or double (double is slow
/// and meant for tests).
template <class Real>
class StageNetwork {
 public:
  /// `range` is a non-empty part of the layers; B = `microbatch_size` ≥ 1. `precision` is that of
  /// the linear layers' products, all else is in Real. `recompute`, any but
  /// kAlternate, says what a slot does not hold and the backward computes again, to the last bit
  /// the same as long as it is given the weights of the forward. Throws Error for an ill-formed
  /// shape and for a vocabulary above kMostTokens.
  StageNetwork(const NetworkShape& shape, LayerRange range, int microbatch_size,
               Recompute recompute = Recompute::kNone,
               ProductPrecision precision = ProductPrecision::kFp32);

  const StageLayout& layout() const { return layout_; }
  bool first() const { return first_; }  ///< takes tokens
  bool last() const { return last_; }    ///< yields the loss

  /// Elements of one activation slot: all that the backward needs and does not compute again, a
  /// copy of the stage's input (or the embedded tokens) included. 64-byte alignment of a slot is
  /// best.
  int64_t activation_elements() const { return slot_.size(); }

  /// B · T · C, the elements of a message between stages.
  int64_t boundary_elements() const { return rows_ * cols_; }

  /// Returns the sum of the B · T token losses in nats on the last stage, 0 elsewhere. `tokens` is
  /// read by the first stage, `input` by the others, `targets` by the last, `output` written by all
  /// but the last; pointers not used may be null. Tokens and targets must be below the vocabulary.
  double Forward(const Real* weights, const Token* tokens, const Real* input, const Token* targets,
                 Real* activation, Real* output);

  /// Adds the gradient of loss_scale · Σ token losses to `gradients` (layout().gradient_size()
  /// elements) and writes that of the input
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
  /// without weights, what was computed again included. Either needs the activation, BackwardWeight
  /// the tokens, BackwardInput the targets.
  void BackwardInput(const Real* weights, const Real* activation, const Token* targets,
                     const Real* output_gradient, Real loss_scale, Real* input_gradient,
                     Real* kept);
  void BackwardWeight(const Real* activation, const Token* tokens, const Real* kept,
                      Real* gradients);
  int64_t kept_elements() const { return kept_.size(); }

  /// The weights at `weights` have been written since they were last read here.
  void WeightsWritten(const Real* weights) { products_->Forget(weights, layout_.size()); }

 private:
  /// Where something lies between forward and backward: in the activation slot, in what
  /// BackwardInput keeps, or in scratch, of use within one call.
  struct Place {
    enum class In : uint8_t { kSlot, kKept, kScratch } in = In::kSlot;
    int64_t offset = 0;
  };
  using BlockPlaces = std::array<Place, kBlockResults>;
  /// What the last stage computes behind its blocks.
  enum HeadResult : uint8_t {
    kFinalMean,
    kFinalDeviation,
    kFinalNorm,
    kTokenProbabilities,
    kHeadResults
  };
  /// All places, as the forward and the backward in one have them, or the backward in halves.
  struct Plan {
    std::vector<BlockPlaces> blocks;
    std::array<Place, kHeadResults> head;
  };

  void PlaceResults(int layers);
  void PlaceGradients(int layers);
  int64_t ElementsOf(HeadResult result) const;
  /// Slot and kept may be null where nothing of theirs is asked for.
  template <class T>
  T* Resolve(Place place, T* slot, T* kept);
  template <class T, size_t kCount>
  std::array<T*, kCount> ResolveAll(const std::array<Place, kCount>& places, T* slot, T* kept);
  /// Computes again what block `b` or the head lacks, to where `plan` has it.
  BlockPointers<const Real> Recovered(const Plan& plan, size_t b, const Real* weights,
                                      const Real* activation, Real* kept);
  std::array<const Real*, kHeadResults> RecoveredHead(const Plan& plan, const Real* weights,
                                                      const Real* activation, const Token* targets,
                                                      Real* kept);
  /// What goes into block `b`, or into the head.
  const Real* StreamIn(size_t b, const Real* activation) {
    return Resolve<const Real>(streams_[b], activation, nullptr);
  }

  void FinalNorm(const Real* weights, const Real* stream,
                 const std::array<Real*, kHeadResults>& to) const;
  double PredictTokens(const Real* weights, const Token* targets,
                       const std::array<Real*, kHeadResults>& to) const;
  void HeadBackward(const Real* weights, const Real* activation, const Token* targets,
                    Real loss_scale, Real* stream_gradient, Real* gradients);
  void HeadBackwardInput(const Real* weights, const Real* activation, const Token* targets,
                         Real loss_scale, Real* stream_gradient, Real* kept);

  StageLayout layout_;
  Recompute recompute_;
  bool first_;
  bool last_;
  int64_t batch_;
  int64_t sequence_;
  int64_t cols_;  ///< C
  int64_t rows_;  ///< B · T
  int64_t vocabulary_;
  std::unique_ptr<Products<Real>> products_;  ///< stays where it is: blocks point to it
  NetworkBlock<Real> block_;

  StageTensors tensors_;

  std::vector<Place> streams_;  ///< the residual stream before each block and after the last
  Plan whole_;
  Plan halves_;
  Places slot_;

  std::vector<std::array<int64_t, kBlockGradients>> kept_gradients_;
  int64_t kept_input_ = 0;   ///< of the first stage
  int64_t kept_logits_ = 0;  ///< of the last stage
  int64_t kept_final_norm_ = 0;
  Places kept_;

  std::vector<Real> scratch_;  ///< what is computed again
  std::vector<Real> wide_;     ///< gradients of qkv, of the MLP's inside, of the logits
  std::vector<Real> narrow_;   ///< gradient of one branch, (B T, C)
  std::vector<Real> stream_;   ///< the first stage's gradient of the residual stream
};

extern template class StageNetwork<float>;
extern template class StageNetwork<double>;

}  // namespace pipelag
