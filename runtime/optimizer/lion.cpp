#include "runtime/optimizer/lion.h"

namespace pipelag {

Lion::Lion(const OptimizerOptions& options, const StageLayout& layout)
    : Optimizer(layout, LionSettings(options).weight_decay),
      settings_(options),
      mean_(static_cast<size_t>(layout.size()), 0.0f) {}

std::vector<StatePart> Lion::State() {
  std::vector<StatePart> parts;
  AddParts("exp_avg", mean_, parts);
  return parts;
}

int64_t Lion::StateFloats(int index) const { return tensor(index).elements(); }

void Lion::ComputeUpdate(const TensorUpdate& update, float* displacement) {
  const StageTensor& place = tensor(update.tensor);
  float* mean = mean_.data() + place.offset;
  const float rate = update.learning_rate;
  const float old1 = settings_.beta1;
  const float old2 = settings_.beta2;
  const float new1 = 1 - old1;
  const float new2 = 1 - old2;
  for (int64_t i = 0; i < place.elements(); ++i) {
    const float g = update.gradient[i];
    const float direction = old1 * mean[i] + new1 * g;
    const float up = direction > 0 ? rate : 0.0f;
    displacement[i] = direction < 0 ? -rate : up;
    mean[i] = old2 * mean[i] + new2 * g;
  }
}

}  // namespace pipelag
