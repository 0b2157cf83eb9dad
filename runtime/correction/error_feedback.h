// Error feedback: what an update should have been, once it is known, is made up for by the next.
#pragma once

#include <vector>

#include "runtime/correction/correction.h"

namespace pipelag {

/// λ: of the options, else the default.
inline float FeedbackStrength(const CorrectionOptions& options) {
  return options.strength.value_or(1.0f);
}

/// x ← x − [u + c (u − u_prev)], u_prev ← u, c = λ τ at delay τ (Zmushko et al., arXiv 2606.30634:
/// λ = τ = 1, x − 2u + u_prev; a horizon of τ updates is the natural generalisation). u is the
/// optimizer's displacement; its moments see gradients only. Without weight decay x is what weight
/// prediction with horizon c has its readers see, and x + c u_prev its master copy. Default λ 1.
/// Three choices the source leaves open:
/// - u without weight decay, which is applied once per step beside it; `decay_inside` makes u the
///   whole displacement, lr · decay · x included. The difference is of order lr · decay.
/// - u_prev keeps the learning rate it was made with, since the formula has none of its own;
///   `rescale_previous` brings it to the current one.
/// - the first u_prev is 0, so the first step is (1 + c) u: the weights it yields are read after
///   τ further updates, which it stands for. `repeat_first` makes it u. A synchronous start counts
///   as nothing before: u_prev is 0 at the first delayed update.
class ErrorFeedback : public Correction {
 public:
  ErrorFeedback(const CorrectionOptions& options, std::unique_ptr<Optimizer> inner,
                StageDelay delay);
  void ComputeUpdate(const TensorUpdate& update, float* displacement) override;
  std::vector<StatePart> State() override;
  int64_t StateFloats(int tensor) const override;

 private:
  float strength_;
  bool decay_inside_;
  bool rescale_previous_;
  bool repeat_first_;
  std::vector<float> previous_;  ///< in the stage's layout; empty if never needed
  std::vector<float> rates_;     ///< of previous_, one per tensor; negative before there is one
};

}  // namespace pipelag
