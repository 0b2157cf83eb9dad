#include "runtime/optimizer/sgd.h"

namespace pipelag {

Sgd::Sgd(const OptimizerOptions& options, const StageLayout& layout)
    : Sgd(options, layout, false) {}

Sgd::Sgd(const OptimizerOptions& options, const StageLayout& layout, bool mean)
    : Optimizer(layout, options.weight_decay.value_or(0.0f)),
      momentum_(options.momentum.value_or(0.9f)),
      weight_(mean ? 1 - momentum_ : 1.0f),
      nesterov_(options.nesterov.value_or(false)),
      buffer_(static_cast<size_t>(layout.size()), 0.0f) {}

std::vector<StatePart> Sgd::State() {
  std::vector<StatePart> parts;
  AddParts("momentum_buffer", buffer_, parts);
  return parts;
}

int64_t Sgd::StateFloats(int index) const { return tensor(index).elements(); }

void Sgd::ComputeUpdate(const TensorUpdate& update, float* displacement) {
  const StageTensor& place = tensor(update.tensor);
  float* buffer = buffer_.data() + place.offset;
  const float momentum = momentum_;
  const float weight = weight_;
  const float rate = update.learning_rate;
  for (int64_t i = 0; i < place.elements(); ++i) {
    const float g = weight * update.gradient[i];
    buffer[i] = momentum * buffer[i] + g;
    displacement[i] = rate * (nesterov_ ? momentum * buffer[i] + g : buffer[i]);
  }
}

}  // namespace pipelag
