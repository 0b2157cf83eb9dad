// What an optimizer is: from a stage's gradients to a displacement of its weights, tensor by
// tensor. Delay corrections wrap this interface, so it knows neither schedules nor delays nor where
// the gradients come from. Norms and clipping: norm.h; the learning rate's course: learning_rate.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/network/layout.h"

namespace pipelag {

/// How far an orthogonalised matrix moves.
enum class MuonScale {
  kMoonshot,  ///< 0.2 √max(rows, cols): AdamW's root mean square, so AdamW's rate and decay fit
  kJordan,    ///< √max(1, rows / cols), with rates near 0.02
};

/// What a job says about its optimizer. What is left out is the optimizer's own default, given in
/// its header; what an optimizer has no use for is ignored.
struct OptimizerOptions {
  std::string name = "adamw";
  float learning_rate = 1e-3f;  ///< the peak of the learning rate's course
  std::optional<float> momentum = std::nullopt;
  std::optional<float> beta1 = std::nullopt;
  std::optional<float> beta2 = std::nullopt;
  std::optional<float> epsilon = std::nullopt;
  std::optional<float> beta3 = std::nullopt;
  std::optional<float> weight_decay = std::nullopt;
  std::optional<bool> nesterov = std::nullopt;
  std::optional<MuonScale> muon_scale = std::nullopt;
  /// Peak for the tensors that Muon and NorMuon leave to AdamW; its course is the other's, scaled.
  std::optional<float> muon_aux_learning_rate = std::nullopt;
  std::optional<int> basis_updates =
      std::nullopt;  ///< updates between two refreshes of SOAP's basis
};

/// One tensor at one update. The pointers are to its own elements.
struct TensorUpdate {
  int tensor = 0;  ///< its place in the stage's layout
  const float* gradient = nullptr;
  const float* weights = nullptr;   ///< the newest
  const float* taken_at = nullptr;  ///< the weights of the gradient; null where they are gone
  float learning_rate = 0;          ///< the tensor's own
  int64_t number = 1;               ///< counts real updates from 1
};

/// A named part of what is kept for one tensor, where it lies: to be saved, or filled with what was
/// saved. A part is of floats or of doubles; the name is unique for the tensor.
struct StatePart {
  int tensor = 0;  ///< its place in the stage's layout
  std::string name;
  std::span<float> floats = {};
  std::span<double> doubles = {};
};

/// One per stage; owns its fp32 state, which starts at zero. Used by one thread at a time, after
/// PrepareThread(). Nothing is allocated after construction.
class Optimizer {
 public:
  Optimizer(const StageLayout& layout, float weight_decay);
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Writes the displacement u of one tensor, so that x_new = x · (1 − lr · decay) − u: the
  /// learning rate is in it, the decoupled weight decay (Loshchilov, Hutter, arXiv 1711.05101) is
  /// not. `displacement` does not overlap what `update` points at. Advances the state: called once
  /// per tensor and update.
  virtual void ComputeUpdate(const TensorUpdate& update, float* displacement) = 0;

  /// The learning rate of one tensor, from the course's.
  virtual float Rate(const StageTensor& place, float learning_rate, int64_t number) const;

  /// Writes what the next readers shall compute with: by default the new weights.
  virtual void Apply(const TensorUpdate& update, const float* displacement, float* target);

  /// What a run ends with, in the stage's layout, given what the last Step wrote.
  virtual const float* FinalWeights(const float* newest) const { return newest; }

  /// All that an update depends on besides its arguments. Does not depend on the partition.
  virtual std::vector<StatePart> State() = 0;

  /// Floats of state kept for a tensor; numbers per tensor and scratch do not count.
  virtual int64_t StateFloats(int tensor) const = 0;

  /// One update of the whole stage, tensor by tensor in the layout's order: the new weights go to
  /// `target`, which may be `source` itself (in place) or another buffer of the same layout (a new
  /// version). Gaps of `target` are not touched. `taken_at` are the weights the gradients were
  /// taken at, null where they are gone; it may be `source` or `target`, whose old values are
  /// meant.
  void Step(const float* gradients, const float* source, float* target, float learning_rate,
            int64_t number, const float* taken_at = nullptr);

  /// The decay of a tensor: the optimizer's for matrices, embeddings and the head, 0 for vectors
  /// (biases and LayerNorm parameters), whatever the optimizer.
  float WeightDecay(const StageTensor& place) const;
  float weight_decay() const { return weight_decay_; }

  const StageLayout& layout() const { return layout_; }
  const StageTensor& tensor(int index) const {
    return layout_.tensors()[static_cast<size_t>(index)];
  }
  int tensor_count() const { return static_cast<int>(layout_.tensors().size()); }
  int64_t largest_tensor() const { return static_cast<int64_t>(displacement_.size()); }

 protected:
  /// Parts of one name, one per tensor, out of a buffer in the stage's layout; none of an empty
  /// one.
  void AddParts(const std::string& name, std::vector<float>& buffer,
                std::vector<StatePart>& parts) const;

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
