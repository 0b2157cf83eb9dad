#include "runtime/optimizer/optimizer.h"

#include <algorithm>

namespace pipelag {

Optimizer::Optimizer(const StageLayout& layout, float weight_decay)
    : layout_(layout), weight_decay_(weight_decay) {
  int64_t largest = 0;
  for (const StageTensor& tensor : layout_.tensors()) {
    largest = std::max(largest, tensor.elements());
  }
  displacement_.resize(static_cast<size_t>(largest));
}

void Optimizer::Step(const float* gradients, const float* source, float* target,
                     float learning_rate, int64_t update_number) {
  const std::vector<StageTensor>& tensors = layout_.tensors();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const StageTensor& tensor = tensors[i];
    ComputeUpdate(static_cast<int>(i), gradients + tensor.offset, source + tensor.offset,
                  learning_rate, update_number, displacement_.data());
    ApplyUpdate(tensor.elements(), source + tensor.offset, displacement_.data(), learning_rate,
                WeightDecay(tensor), target + tensor.offset);
  }
}

float Optimizer::WeightDecay(const StageTensor& tensor) const {
  return tensor.role == TensorRole::kVector ? 0.0f : weight_decay_;
}

void ApplyUpdate(int64_t elements, const float* source, const float* displacement,
                 float learning_rate, float weight_decay, float* target) {
  const float kept = 1.0f - learning_rate * weight_decay;
  for (int64_t i = 0; i < elements; ++i) target[i] = source[i] * kept - displacement[i];
}

}  // namespace pipelag
