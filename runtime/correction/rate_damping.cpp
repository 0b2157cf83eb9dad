#include "runtime/correction/rate_damping.h"

#include <cmath>
#include <utility>

namespace pipelag {

float DampedRate(float rate, const StageDelay& delay, float exponent, int64_t number) {
  const int late = delay.At(number);
  if (late <= 1) return rate;
  return static_cast<float>(static_cast<double>(rate) *
                            std::pow(late, -static_cast<double>(exponent)));
}

RateDamping::RateDamping(const CorrectionOptions& options, std::unique_ptr<Optimizer> inner_one,
                         StageDelay stage_delay)
    : Correction(std::move(inner_one), stage_delay), exponent_(DampingExponent(options)) {}

float RateDamping::Rate(const StageTensor& place, float learning_rate, int64_t number) const {
  return DampedRate(Correction::Rate(place, learning_rate, number), delay(), exponent_, number);
}

}  // namespace pipelag
