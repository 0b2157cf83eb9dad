// Lion: the sign of an interpolated momentum. Knows one tensor at a time.
#pragma once

#include <vector>

#include "runtime/optimizer/optimizer.h"

namespace pipelag {

/// What a Lion computes with: of the options, else its defaults.
struct LionSettings {
  explicit LionSettings(const OptimizerOptions& options)
      : beta1(options.beta1.value_or(0.9f)),
        beta2(options.beta2.value_or(0.99f)),
        weight_decay(options.weight_decay.value_or(0.1f)) {}

  float beta1;
  float beta2;
  float weight_decay;
};

/// u = lr · sign(β1 m + (1 − β1) g), sign(0) = 0; then m ← β2 m + (1 − β2) g (Chen et al., arXiv
/// 2302.06675, algorithm 2). Its rates are 3 to 10 times below AdamW's. Defaults: β 0.9 and 0.99,
/// decay 0.1.
class Lion : public Optimizer {
 public:
  Lion(const OptimizerOptions& options, const StageLayout& layout);
  void ComputeUpdate(const TensorUpdate& update, float* displacement) override;
  std::vector<StatePart> State() override;
  int64_t StateFloats(int tensor) const override;

 private:
  LionSettings settings_;
  std::vector<float> mean_;  ///< in the stage's layout
};

}  // namespace pipelag
