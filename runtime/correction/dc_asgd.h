// DC-ASGD: a late gradient is carried to the newest weights by a guess at its curvature.
#pragma once

#include <vector>

#include "runtime/correction/correction.h"

namespace pipelag {

/// The optimizer gets g + λ g² (w_now − w_taken) elementwise (Zheng et al., arXiv 1609.08326). λ is
/// constant (default 0.04), or adaptive: λ0 / √(s + 1e-7), s ← 0.95 s + 0.05 g² (default λ0 2).
/// Keeps no weights of its own: needs a schedule that stashes those the gradient was taken at.
/// Throws Error at the first late update if they are gone.
class DcAsgd : public Correction {
 public:
  DcAsgd(const CorrectionOptions& options, std::unique_ptr<Optimizer> inner, StageDelay delay,
         bool adaptive);
  void ComputeUpdate(const TensorUpdate& update, float* displacement) override;
  std::vector<StatePart> State() override;
  int64_t StateFloats(int tensor) const override;

 private:
  float strength_;
  std::vector<float> squares_;    ///< s, in the stage's layout; empty if constant or not late
  std::vector<float> corrected_;  ///< gradient of one tensor
};

}  // namespace pipelag
