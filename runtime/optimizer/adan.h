// Adan: Adam with Nesterov's momentum estimated from differences of gradients. Knows one tensor at
// a time.
#pragma once

#include <vector>

#include "runtime/optimizer/optimizer.h"

namespace pipelag {

/// What an Adan computes with: of the options, else its defaults.
struct AdanSettings {
  explicit AdanSettings(const OptimizerOptions& options)
      : beta1(options.beta1.value_or(0.98f)),
        beta2(options.beta2.value_or(0.92f)),
        beta3(options.beta3.value_or(0.99f)),
        epsilon(options.epsilon.value_or(1e-8f)),
        weight_decay(options.weight_decay.value_or(0.1f)) {}

  float beta1;
  float beta2;
  float beta3;
  float epsilon;
  float weight_decay;
};

/// d = g − g_prev, 0 at the first update; m ← β1 m + (1 − β1) g; q ← β2 q + (1 − β2) d;
/// n ← β3 n + (1 − β3) (g + β2 d)²; u = lr · (m̂ + β2 q̂) / (√n̂ + ε), each mean divided by 1 − its
/// β^n (Xie et al., arXiv 2208.06677, with β as decays, as their code has them). Decay stands where
/// it stands for all optimizers here, their `no_prox`. Defaults: β 0.98, 0.92, 0.99, ε 1e-8, decay
/// 0.1.
class Adan : public Optimizer {
 public:
  Adan(const OptimizerOptions& options, const StageLayout& layout);
  void ComputeUpdate(const TensorUpdate& update, float* displacement) override;
  std::vector<StatePart> State() override;
  int64_t StateFloats(int tensor) const override;

 private:
  AdanSettings settings_;
  std::vector<float> mean_;  ///< all in the stage's layout
  std::vector<float> difference_;
  std::vector<float> square_;
  std::vector<float> previous_;
};

}  // namespace pipelag
