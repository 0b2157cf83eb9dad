// MARS: AdamW on gradients whose variance is reduced. Knows one tensor at a time.
#pragma once

#include <vector>

#include "runtime/optimizer/adamw.h"
#include "runtime/optimizer/optimizer.h"

namespace pipelag {

/// c = g + 0.025 · β1 / (1 − β1) · (g − g_prev), g_prev = 0 at the first update; c ← c / max(1,
/// ‖c‖) per tensor; AdamW on c (Yuan et al., arXiv 2411.10438: MARS-AdamW in its approximate form,
/// whose g_prev is the previous batch's gradient as it was). Vectors: AdamW with β 0.9 and 0.95.
/// Defaults: β 0.95 and 0.99, ε 1e-8, decay 0.1.
class Mars : public Optimizer {
 public:
  Mars(const OptimizerOptions& options, const StageLayout& layout);
  void ComputeUpdate(const TensorUpdate& update, float* displacement) override;
  std::vector<StatePart> State() override;
  int64_t StateFloats(int tensor) const override;

 private:
  float beta1_;
  AdamW matrices_;
  AdamW vectors_;
  std::vector<float> previous_;  ///< in the stage's layout
  std::vector<float> reduced_;   ///< c of one tensor
};

}  // namespace pipelag
