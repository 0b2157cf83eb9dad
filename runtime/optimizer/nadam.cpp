#include "runtime/optimizer/nadam.h"

#include <cmath>

namespace pipelag {

NAdam::NAdam(const OptimizerOptions& options, const StageLayout& layout)
    : Optimizer(layout, NAdamSettings(options).weight_decay),
      settings_(options),
      first_(static_cast<size_t>(layout.size()), 0.0f),
      second_(first_),
      products_(layout.tensors().size(), 1.0) {}

std::vector<StatePart> NAdam::State() {
  std::vector<StatePart> parts;
  AddParts("exp_avg", first_, parts);
  AddParts("exp_avg_sq", second_, parts);
  for (int i = 0; i < tensor_count(); ++i) {
    parts.push_back(
        {.tensor = i, .name = "mu_product", .doubles = {&products_[static_cast<size_t>(i)], 1}});
  }
  return parts;
}

int64_t NAdam::StateFloats(int index) const { return 2 * tensor(index).elements(); }

void NAdam::ComputeUpdate(const TensorUpdate& update, float* displacement) {
  const StageTensor& place = tensor(update.tensor);
  double& product = products_[static_cast<size_t>(update.tensor)];
  const double now = settings_.Momentum(update.number);
  const double next = settings_.Momentum(update.number + 1);
  product *= now;
  const double rate = update.learning_rate;
  const auto of_gradient = static_cast<float>(rate * (1 - now) / (1 - product));
  const auto of_mean = static_cast<float>(rate * next / (1 - product * next));
  const double correction =
      1 - std::pow(static_cast<double>(settings_.beta2), static_cast<double>(update.number));
  const auto inverse_root = static_cast<float>(1 / std::sqrt(correction));
  const float old1 = settings_.beta1;
  const float old2 = settings_.beta2;
  const float new1 = 1 - old1;
  const float new2 = 1 - old2;
  const float epsilon = settings_.epsilon;
  float* first = first_.data() + place.offset;
  float* second = second_.data() + place.offset;
  for (int64_t i = 0; i < place.elements(); ++i) {
    const float g = update.gradient[i];
    const float m = old1 * first[i] + new1 * g;
    const float v = old2 * second[i] + new2 * (g * g);
    first[i] = m;
    second[i] = v;
    displacement[i] = (of_gradient * g + of_mean * m) / (std::sqrt(v) * inverse_root + epsilon);
  }
}

}  // namespace pipelag
