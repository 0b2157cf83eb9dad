// What an optimizer is: from a stage's gradients to a displacement of its weights, tensor by
// tensor. Delay corrections wrap this interface, so it knows neither schedules nor delays nor where
// the gradients come from. Norms and clipping: norm.h; the learning rate's course: learning_rate.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/network/layout.h"

namespace pipelag {

/// What a job says about its optimizer. What is left out is the optimizer's own default, given in
/// its header; what an optimizer has no use for is ignored.
struct OptimizerOptions {
  std::string name = "adamw";
  float learning_rate = 1e-3f;  ///< the peak of the learning rate's course
  std::optional<float> momentum;
  std::optional<float> beta1;
  std::optional<float> beta2;
  std::optional<float> epsilon;
  std::optional<float> weight_decay;
};

/// One per stage; owns its fp32 state, which starts at zero. Used by one thread at a time, after
/// UseOneThread(). Nothing is allocated after construction.
class Optimizer {
 public:
  Optimizer(const StageLayout& layout, float weight_decay);
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Writes the displacement u of one tensor, so that x_new = x · (1 − lr · decay) − u: the
  /// learning rate is in it, the decoupled weight decay (Loshchilov, Hutter, arXiv 1711.05101) is
  /// not. `tensor` is its place in the stage's layout; `gradient`, `weights` and `displacement`
  /// point at its own elements and do not overlap. `update_number` counts real updates from 1.
  /// Advances the state: called once per tensor and update.
  virtual void ComputeUpdate(int tensor, const float* gradient, const float* weights,
                             float learning_rate, int64_t update_number, float* displacement) = 0;

  /// One update of the whole stage, tensor by tensor in the layout's order: the new weights go to
  /// `target`, which may be `source` itself (in place) or another buffer of the same layout (a new
  /// version). Gaps of `target` are not touched.
  void Step(const float* gradients, const float* source, float* target, float learning_rate,
            int64_t update_number);

  /// The decay of a tensor: the optimizer's for matrices, embeddings and the head, 0 for vectors
  /// (biases and LayerNorm parameters), whatever the optimizer.
  float WeightDecay(const StageTensor& tensor) const;

  const StageLayout& layout() const { return layout_; }

 private:
  StageLayout layout_;
  float weight_decay_;
  std::vector<float> displacement_;
};

/// target = source · (1 − learning_rate · weight_decay) − displacement. `target` may be `source`.
void ApplyUpdate(int64_t elements, const float* source, const float* displacement,
                 float learning_rate, float weight_decay, float* target);

/// Throws Error naming the nearest known optimizer if there is none of that name.
std::unique_ptr<Optimizer> MakeOptimizer(const OptimizerOptions& options,
                                         const StageLayout& layout);

/// Known names, in the order in which they are shown.
std::vector<std::string> OptimizerNames();

}  // namespace pipelag
