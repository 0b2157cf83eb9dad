#include "runtime/correction/correction.h"

#include <utility>

#include "models/error.h"

namespace pipelag {

Correction::Correction(std::unique_ptr<Optimizer> inner, StageDelay delay)
    : Optimizer(inner->layout(), inner->weight_decay()), inner_(std::move(inner)), delay_(delay) {
  CHECK(delay_.updates >= 0);
}

void Correction::ComputeUpdate(const TensorUpdate& update, float* displacement) {
  inner_->ComputeUpdate(update, displacement);
}

float Correction::Rate(const StageTensor& place, float learning_rate, int64_t number) const {
  return inner_->Rate(place, learning_rate, number);
}

std::vector<StatePart> Correction::State() { return inner_->State(); }

int64_t Correction::StateFloats(int index) const { return inner_->StateFloats(index); }

}  // namespace pipelag
