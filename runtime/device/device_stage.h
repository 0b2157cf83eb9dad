// One stage of a network on one device: forward, backward and update over the caller's device
// memory, the counterpart of StageNetwork and Optimizer. Knows no schedule, rank, message or event.
#pragma once

#include <cstddef>
#include <cstdint>

#include "models/architecture/work.h"
#include "models/network.h"
#include "runtime/correction/correction.h"
#include "runtime/data/token.h"
#include "runtime/device/stream.h"
#include "runtime/network/layout.h"
#include "runtime/optimizer/optimizer.h"

namespace pipelag {

/// What products are of, and what activations and messages hold. Sums, gradients of weights, master
/// weights and optimizer state are fp32 in either, squared norms and losses double.
enum class StagePrecision : uint8_t {
  kFloat32,   ///< for checks; no TF32
  kBfloat16,  ///< mixed: bf16 copies of the weights stand behind the fp32 masters
};

struct DeviceStageOptions {
  NetworkShape shape;
  LayerRange range;
  int microbatch_size = 8;
  /// Any but kAlternate. Changes no bit, but for one case: in bf16 the library may take GELU of
  /// what it has not rounded yet, unless kSelective has to take it again of what was kept.
  Recompute recompute = Recompute::kNone;
  StagePrecision precision = StagePrecision::kBfloat16;
  OptimizerOptions optimizer;
  CorrectionOptions correction;
  StageDelay delay;
};

/// Calls enqueue on the stream given and return; none waits for the device but where it says so.
/// Those of one stage, and of all that share a scratch, follow each other: on one stream, or
/// ordered by the caller. Every sum has a fixed order and nothing depends on timing: the same calls
/// with the same numbers yield the same bits, on whatever stream.
///
/// All memory is the caller's, on the stage's device, which is the calling thread's current one in
/// every call. Pointers to it are aligned to kAlignment; the sizes named here are multiples of it.
/// What is not written by a call named before may hold anything, NaN included; pointers that a
/// stage has no use for (see StageNetwork) may be null. Nothing is allocated on the device.
/// Boundary tensors (messages and their gradients) are (B, T, C) in the compute type, float or
/// bf16.
class DeviceStage {
 public:
  static constexpr size_t kAlignment = 256;

  DeviceStage() = default;
  virtual ~DeviceStage() = default;
  DeviceStage(const DeviceStage&) = delete;
  DeviceStage& operator=(const DeviceStage&) = delete;

  virtual const StageLayout& layout() const = 0;
  virtual bool first() const = 0;  ///< takes tokens
  virtual bool last() const = 0;   ///< yields the loss

  virtual size_t activation_bytes() const = 0;  ///< of one slot, F → B or W
  virtual size_t kept_bytes() const = 0;        ///< of one slot, I → W
  /// Of one version: fp32 masters in the layout (layout().size() floats at the start), behind them
  /// with kBfloat16 as many bf16 copies. All zeros before anything is written to it: what lies
  /// between and behind tensors is read in places, and never written.
  virtual size_t weight_bytes() const = 0;
  /// Of one accumulator: layout().gradient_size() floats, in the layout, gaps included, and what
  /// pads them; all zeros before the first Backward.
  virtual size_t gradient_bytes() const = 0;
  virtual size_t message_bytes() const = 0;  ///< of a boundary tensor
  /// Of use within one call: stages whose calls follow each other may share the largest one's.
  virtual size_t scratch_bytes() const = 0;
  virtual size_t state_bytes() const = 0;  ///< the optimizer's and constants, for good

  /// Called before any other call that takes a stream, and again to begin anew. Both must outlive
  /// the stage. Clears the state: an optimizer that has seen nothing. May wait for the device.
  virtual void Begin(Stream stream, void* state, void* scratch) = 0;

  /// `loss`, read by the last stage only: one double, becomes the sum of the B · T token losses in
  /// nats. `tokens` and `targets` are B · T in device memory.
  virtual void Forward(Stream stream, const void* weights, const Token* tokens, const void* input,
                       const Token* targets, void* activation, void* output, double* loss) = 0;

  /// Adds to `gradients`. `output_gradient` carries the scale; `loss_scale` is read by the last
  /// stage only: 1 / (B T m) yields the mean over a batch of m micro-batches. `weights` and
  /// `targets` are those of the Forward. No buffer overlaps another.
  virtual void Backward(Stream stream, const void* weights, const void* activation,
                        const Token* tokens, const Token* targets, const void* output_gradient,
                        float loss_scale, void* input_gradient, float* gradients) = 0;

  /// Its two halves, to the last bit the same. The second reads no weights and may come any time
  /// later, with the same loss_scale.
  virtual void BackwardInput(Stream stream, const void* weights, const void* activation,
                             const Token* targets, const void* output_gradient, float loss_scale,
                             void* input_gradient, void* kept) = 0;
  virtual void BackwardWeight(Stream stream, const void* activation, const Token* tokens,
                              const void* kept, float loss_scale, float* gradients) = 0;

  /// As pipelag::JoinTied: where one stage holds both, adds the gradient of a tied head to that of
  /// the embedding. Once per batch, before its norms or its update.
  virtual void JoinTied(Stream stream, float* gradients) = 0;

  /// Σ values² of each tensor, copies too, in the layout's order, to norms[0 .. tensors): each in
  /// double, in an order that depends on the tensor's size only.
  virtual void SquaredNorms(Stream stream, const float* gradients, double* norms) = 0;

  /// As pipelag::ClipFactor: from the squared norms of all `count` tensors of the network in global
  /// order, added in that order, to one float on the device.
  virtual void ClipFactor(Stream stream, const double* squared_norms, int count, double max_norm,
                          float* factor) = 0;

  /// Update `number` (from 1) at the course's `rate`: `source` is the newest version, `target`
  /// becomes the next, and may be `source`; `taken_at` is the version the gradients were taken at,
  /// null where it is gone, and may be either. Gradients are multiplied with `factor`, one float on
  /// the device (null: 1), and then cleared, gaps included. Throws Error where Optimizer::Step
  /// does.
  virtual void Update(Stream stream, float* gradients, const void* source, void* target, float rate,
                      int64_t number, const void* taken_at, const float* factor) = 0;

  /// One version from and to layout().size() floats of the host; pinned memory may be neither
  /// touched nor freed before the stream has come to the copy, other memory makes the call wait.
  virtual void Upload(Stream stream, const float* host, void* weights) = 0;
  virtual void Download(Stream stream, const void* weights, float* host) = 0;

  /// Optimizer state from and to `host`, made by MakeCorrected of the same options, part by part
  /// (Optimizer::State). May wait for the device; StoreState has written all when it returns.
  /// What a run ends with is then host.FinalWeights(the newest version, downloaded).
  virtual void LoadState(Stream stream, Optimizer& host) = 0;
  virtual void StoreState(Stream stream, Optimizer& host) = 0;
};

}  // namespace pipelag
