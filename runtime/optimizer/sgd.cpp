#include "runtime/optimizer/sgd.h"

namespace pipelag {

Sgd::Sgd(const OptimizerOptions& options, const StageLayout& layout)
    : Sgd(options, layout, false) {}

Sgd::Sgd(const OptimizerOptions& options, const StageLayout& layout, bool mean)
    : Optimizer(layout, SgdSettings(options, mean).weight_decay),
      settings_(options, mean),
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
  const float momentum = settings_.momentum;
  const float weight = settings_.weight;
  const bool nesterov = settings_.nesterov;
  const float rate = update.learning_rate;
  for (int64_t i = 0; i < place.elements(); ++i) {
    const float g = weight * update.gradient[i];
    buffer[i] = momentum * buffer[i] + g;
    displacement[i] = rate * (nesterov ? momentum * buffer[i] + g : buffer[i]);
  }
}

}  // namespace pipelag
