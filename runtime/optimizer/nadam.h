// NAdam: Adam with Nesterov's momentum. Knows one tensor at a time.
#pragma once

#include <cmath>
#include <vector>

#include "runtime/optimizer/optimizer.h"

namespace pipelag {

/// What an NAdam computes with: of the options, else its defaults.
struct NAdamSettings {
  explicit NAdamSettings(const OptimizerOptions& options)
      : beta1(options.beta1.value_or(0.99f)),
        beta2(options.beta2.value_or(0.999f)),
        epsilon(options.epsilon.value_or(1e-8f)),
        weight_decay(options.weight_decay.value_or(0.1f)) {}

  /// μ at update `number`.
  double Momentum(int64_t number) const {
    return static_cast<double>(beta1) *
           (1 - 0.5 * std::pow(0.96, 0.004 * static_cast<double>(number)));
  }

  float beta1;
  float beta2;
  float epsilon;
  float weight_decay;
};

/// m, v as in AdamW; μ_n = β1 (1 − 0.5 · 0.96^(0.004 n)), P_n = Π_{i ≤ n} μ_i;
/// u = lr · [(1 − μ_n) g / (1 − P_n) + μ_{n+1} m / (1 − P_{n+1})] / (√v̂ + ε) (Dozat, 2016, as in
/// torch.optim.NAdam), with decoupled decay and the β of AsyncPP (Ajanthan et al., arXiv
/// 2505.01099), made for asynchronous pipelines. Defaults: β 0.99 and 0.999, ε 1e-8, decay 0.1.
class NAdam : public Optimizer {
 public:
  NAdam(const OptimizerOptions& options, const StageLayout& layout);
  void ComputeUpdate(const TensorUpdate& update, float* displacement) override;
  std::vector<StatePart> State() override;
  int64_t StateFloats(int tensor) const override;

 private:
  NAdamSettings settings_;
  std::vector<float> first_;  ///< in the stage's layout
  std::vector<float> second_;
  std::vector<double> products_;  ///< P_n, one per tensor
};

}  // namespace pipelag
