// Stochastic gradient descent with momentum. Knows one tensor at a time.
#pragma once

#include <vector>

#include "runtime/optimizer/optimizer.h"

namespace pipelag {

/// What an SGD computes with: of the options, else its defaults. `mean`: the EMA form.
struct SgdSettings {
  SgdSettings(const OptimizerOptions& options, bool mean)
      : momentum(options.momentum.value_or(0.9f)),
        weight(mean ? 1 - momentum : 1.0f),
        nesterov(options.nesterov.value_or(false)),
        weight_decay(options.weight_decay.value_or(0.0f)) {}

  float momentum;
  float weight;  ///< w
  bool nesterov;
  float weight_decay;
};

/// b ← μ b + w g; u = lr · b, or lr · (μ b + w g) with Nesterov's momentum (Sutskever et al., ICML
/// 2013). Sum form, PyTorch's: w = 1. EMA form: w = 1 − μ, whose rate is 1 / (1 − μ) times that of
/// the other; limits of stability are stated for it. Defaults: μ 0.9, no Nesterov, decay 0.
class Sgd : public Optimizer {
 public:
  Sgd(const OptimizerOptions& options, const StageLayout& layout);
  void ComputeUpdate(const TensorUpdate& update, float* displacement) override;
  std::vector<StatePart> State() override;
  int64_t StateFloats(int tensor) const override;

 protected:
  Sgd(const OptimizerOptions& options, const StageLayout& layout, bool mean);

 private:
  SgdSettings settings_;
  std::vector<float> buffer_;  ///< in the stage's layout
};

class SgdEma : public Sgd {
 public:
  SgdEma(const OptimizerOptions& options, const StageLayout& layout) : Sgd(options, layout, true) {}
};

}  // namespace pipelag
