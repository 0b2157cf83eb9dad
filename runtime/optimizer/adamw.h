// AdamW. Knows one tensor at a time.
#pragma once

#include <vector>

#include "runtime/optimizer/optimizer.h"

namespace pipelag {

/// What an AdamW computes with: of the options, else its defaults.
struct AdamWSettings {
  explicit AdamWSettings(const OptimizerOptions& options)
      : beta1(options.beta1.value_or(0.9f)),
        beta2(options.beta2.value_or(0.95f)),
        epsilon(options.epsilon.value_or(1e-8f)),
        weight_decay(options.weight_decay.value_or(0.1f)) {}

  float beta1;
  float beta2;
  float epsilon;
  float weight_decay;
};

/// m ← β1 m + (1 − β1) g; v ← β2 v + (1 − β2) g²; u = lr · m̂ / (√v̂ + ε) with m̂ = m / (1 − β1^n),
/// v̂ = v / (1 − β2^n) at update n (Kingma, Ba, arXiv 1412.6980, algorithm 1; decay decoupled as in
/// Loshchilov, Hutter, arXiv 1711.05101). Defaults: β 0.9 and 0.95, ε 1e-8, decay 0.1.
class AdamW : public Optimizer {
 public:
  AdamW(const OptimizerOptions& options, const StageLayout& layout);

  /// For optimizers that leave some tensors to AdamW: state for those `held` only.
  AdamW(const OptimizerOptions& options, const StageLayout& layout,
        bool (*held)(const StageTensor&));

  void ComputeUpdate(const TensorUpdate& update, float* displacement) override;
  std::vector<StatePart> State() override;
  int64_t StateFloats(int tensor) const override;

 private:
  struct Moments {
    std::vector<float> first;
    std::vector<float> second;
  };

  AdamWSettings settings_;
  std::vector<Moments> moments_;  ///< one per tensor of the layout
};

}  // namespace pipelag
