// DC-ASGD: a late gradient is carried to the newest weights by a guess at its curvature.
#pragma once

#include <vector>

#include "runtime/correction/correction.h"

namespace pipelag {

/// How g is weighed, of the options or else by default.
struct DcAsgdSettings {
  static constexpr float kKept = 0.95f;
  static constexpr float kEpsilon = 1e-7f;

  DcAsgdSettings(const CorrectionOptions& options, bool is_adaptive)
      : strength(options.strength.value_or(is_adaptive ? 2.0f : 0.04f)), adaptive(is_adaptive) {}

  float strength;  ///< λ or λ0
  bool adaptive;
};

/// The optimizer gets g + λ g² (w_now − w_taken) elementwise (Zheng et al., arXiv 1609.08326). λ is
/// constant (default 0.04), or adaptive: λ0 / √(s + 1e-7), s ← 0.95 s + 0.05 g² (default λ0 2).
/// Keeps no weights of its own: needs a schedule that keeps those the gradient was taken at until
/// its update (CheckPlan refuses others).
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
