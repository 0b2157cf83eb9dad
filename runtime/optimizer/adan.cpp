#include "runtime/optimizer/adan.h"

#include <algorithm>
#include <cmath>

namespace pipelag {

Adan::Adan(const OptimizerOptions& options, const StageLayout& layout)
    : Optimizer(layout, AdanSettings(options).weight_decay),
      settings_(options),
      mean_(static_cast<size_t>(layout.size()), 0.0f),
      difference_(mean_),
      square_(mean_),
      previous_(mean_) {}

std::vector<StatePart> Adan::State() {
  std::vector<StatePart> parts;
  AddParts("exp_avg", mean_, parts);
  AddParts("exp_avg_diff", difference_, parts);
  AddParts("exp_avg_sq", square_, parts);
  AddParts("previous_gradient", previous_, parts);
  return parts;
}

int64_t Adan::StateFloats(int index) const { return 4 * tensor(index).elements(); }

void Adan::ComputeUpdate(const TensorUpdate& update, float* displacement) {
  const StageTensor& place = tensor(update.tensor);
  float* mean = mean_.data() + place.offset;
  float* difference = difference_.data() + place.offset;
  float* square = square_.data() + place.offset;
  float* previous = previous_.data() + place.offset;
  if (update.number == 1) {
    std::copy(update.gradient, update.gradient + place.elements(), previous);
  }
  const auto correction = [&](float beta) {
    return 1 - std::pow(static_cast<double>(beta), static_cast<double>(update.number));
  };
  const double rate = update.learning_rate;
  const auto of_mean = static_cast<float>(rate / correction(settings_.beta1));
  const auto of_difference =
      static_cast<float>(rate * static_cast<double>(settings_.beta2) / correction(settings_.beta2));
  const auto inverse_root = static_cast<float>(1 / std::sqrt(correction(settings_.beta3)));
  const float old1 = settings_.beta1;
  const float old2 = settings_.beta2;
  const float old3 = settings_.beta3;
  const float new1 = 1 - old1;
  const float new2 = 1 - old2;
  const float new3 = 1 - old3;
  const float epsilon = settings_.epsilon;
  for (int64_t i = 0; i < place.elements(); ++i) {
    const float g = update.gradient[i];
    const float d = g - previous[i];
    const float ahead = g + old2 * d;
    previous[i] = g;
    mean[i] = old1 * mean[i] + new1 * g;
    difference[i] = old2 * difference[i] + new2 * d;
    square[i] = old3 * square[i] + new3 * (ahead * ahead);
    displacement[i] = (of_mean * mean[i] + of_difference * difference[i]) /
                      (std::sqrt(square[i]) * inverse_root + epsilon);
  }
}

}  // namespace pipelag
