#include "runtime/correction/rate_damping.h"

#include <cmath>
#include <utility>

namespace pipelag {

RateDamping::RateDamping(const CorrectionOptions& options, std::unique_ptr<Optimizer> inner_one,
                         StageDelay stage_delay)
    : Correction(std::move(inner_one), stage_delay), exponent_(options.exponent.value_or(0.5f)) {}

float RateDamping::Rate(const StageTensor& place, float learning_rate, int64_t number) const {
  const float rate = Correction::Rate(place, learning_rate, number);
  const int late = delay().At(number);
  if (late <= 1) return rate;
  return static_cast<float>(static_cast<double>(rate) *
                            std::pow(late, -static_cast<double>(exponent_)));
}

}  // namespace pipelag
