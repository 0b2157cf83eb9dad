// PipeMare's learning-rate rule: late stages start slowly.
#pragma once

#include "runtime/correction/correction.h"

namespace pipelag {

/// K: of the options, else the default. Throws Error if it is not positive.
int64_t AnnealedUpdates(const CorrectionOptions& options);

/// The rate of update `number` out of what it would be.
float AnnealedRate(float rate, const StageDelay& delay, int64_t anneal_updates, int64_t number);

/// lr / τ^(1 − min(k / K, 1)) with k = 0 at the first delayed update (Yang et al., arXiv
/// 1910.05124, technique 1). A delay of 1 changes nothing. The source counts K in epochs, which a
/// run over sampled windows does not have. Default K: 100 updates.
class PipeMare : public Correction {
 public:
  PipeMare(const CorrectionOptions& options, std::unique_ptr<Optimizer> inner, StageDelay delay);
  float Rate(const StageTensor& place, float learning_rate, int64_t number) const override;

 private:
  int64_t anneal_updates_;
};

}  // namespace pipelag
