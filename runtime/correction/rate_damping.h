// Learning-rate damping: the later a stage's gradients, the smaller its steps, for the whole run.
#pragma once

#include "runtime/correction/correction.h"

namespace pipelag {

/// ρ: of the options, else the default.
inline float DampingExponent(const CorrectionOptions& options) {
  return options.exponent.value_or(0.5f);
}

/// The rate of update `number` out of what it would be.
float DampedRate(float rate, const StageDelay& delay, float exponent, int64_t number);

/// lr / τ^ρ (an option of AsyncPP, Ajanthan et al., arXiv 2505.01099). A delay of 1 changes
/// nothing. Default ρ: 0.5.
class RateDamping : public Correction {
 public:
  RateDamping(const CorrectionOptions& options, std::unique_ptr<Optimizer> inner, StageDelay delay);
  float Rate(const StageTensor& place, float learning_rate, int64_t number) const override;

 private:
  float exponent_;
};

}  // namespace pipelag
