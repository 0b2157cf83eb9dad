// NAdam: Adam with Nesterov's momentum. Knows one tensor at a time.
#pragma once

#include <vector>

#include "runtime/optimizer/optimizer.h"

namespace pipelag {

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
  double Momentum(int64_t number) const;

  float beta1_;
  float beta2_;
  float epsilon_;
  std::vector<float> first_;  ///< in the stage's layout
  std::vector<float> second_;
  std::vector<double> products_;  ///< P_n, one per tensor
};

}  // namespace pipelag
