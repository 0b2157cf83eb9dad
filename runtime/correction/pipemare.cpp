#include "runtime/correction/pipemare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "models/error.h"

namespace pipelag {

PipeMare::PipeMare(const CorrectionOptions& options, std::unique_ptr<Optimizer> inner_one,
                   StageDelay stage_delay)
    : Correction(std::move(inner_one), stage_delay),
      anneal_updates_(options.anneal_updates.value_or(100)) {
  if (anneal_updates_ < 1) {
    throw Error(
        fmt::format("the learning rate cannot be annealed over {} updates", anneal_updates_));
  }
}

float PipeMare::Rate(const StageTensor& place, float learning_rate, int64_t number) const {
  const float rate = Correction::Rate(place, learning_rate, number);
  const int late = delay().At(number);
  if (late <= 1) return rate;
  const double progress = static_cast<double>(number - 1 - delay().synchronous_until) /
                          static_cast<double>(anneal_updates_);
  return static_cast<float>(static_cast<double>(rate) *
                            std::pow(late, std::min(progress, 1.0) - 1));
}

}  // namespace pipelag
