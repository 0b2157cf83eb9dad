#include "runtime/optimizer/sgd.h"

namespace pipelag {

Sgd::Sgd(const OptimizerOptions& options, const StageLayout& layout)
    : Optimizer(layout, options.weight_decay.value_or(0.0f)),
      momentum_(options.momentum.value_or(0.9f)),
      buffer_(static_cast<size_t>(layout.size()), 0.0f) {}

void Sgd::ComputeUpdate(int tensor, const float* gradient, const float* /*weights*/,
                        float learning_rate, int64_t /*update_number*/, float* displacement) {
  const StageTensor& place = layout().tensors()[static_cast<size_t>(tensor)];
  float* buffer = buffer_.data() + place.offset;
  for (int64_t i = 0; i < place.elements(); ++i) {
    buffer[i] = momentum_ * buffer[i] + gradient[i];
    displacement[i] = learning_rate * buffer[i];
  }
}

}  // namespace pipelag
