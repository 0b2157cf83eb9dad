#include "runtime/correction/pipemare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "models/error.h"

namespace pipelag {

int64_t AnnealedUpdates(const CorrectionOptions& options) {
  const int64_t updates = options.anneal_updates.value_or(100);
  if (updates < 1) {
    throw Error(fmt::format("the learning rate cannot be annealed over {} updates", updates));
  }
  return updates;
}

float AnnealedRate(float rate, const StageDelay& delay, int64_t anneal_updates, int64_t number) {
  const int late = delay.At(number);
  if (late <= 1) return rate;
  const double progress = static_cast<double>(number - 1 - delay.synchronous_until) /
                          static_cast<double>(anneal_updates);
  return static_cast<float>(static_cast<double>(rate) *
                            std::pow(late, std::min(progress, 1.0) - 1));
}

PipeMare::PipeMare(const CorrectionOptions& options, std::unique_ptr<Optimizer> inner_one,
                   StageDelay stage_delay)
    : Correction(std::move(inner_one), stage_delay), anneal_updates_(AnnealedUpdates(options)) {}

float PipeMare::Rate(const StageTensor& place, float learning_rate, int64_t number) const {
  return AnnealedRate(Correction::Rate(place, learning_rate, number), delay(), anneal_updates_,
                      number);
}

}  // namespace pipelag
