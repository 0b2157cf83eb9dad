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
                     float learning_rate, int64_t number, const float* taken_at) {
  const std::vector<StageTensor>& tensors = layout_.tensors();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const StageTensor& place = tensors[i];
    const TensorUpdate update = {.tensor = static_cast<int>(i),
                                 .gradient = gradients + place.offset,
                                 .weights = source + place.offset,
                                 .taken_at = taken_at ? taken_at + place.offset : nullptr,
                                 .learning_rate = Rate(place, learning_rate, number),
                                 .number = number};
    ComputeUpdate(update, displacement_.data());
    Apply(update, displacement_.data(), target + place.offset);
  }
}

float Optimizer::Rate(const StageTensor& /*place*/, float learning_rate, int64_t /*number*/) const {
  return learning_rate;
}

void Optimizer::Apply(const TensorUpdate& update, const float* displacement, float* target) {
  const StageTensor& place = tensor(update.tensor);
  ApplyUpdate(place.elements(), update.weights, displacement, update.learning_rate,
              WeightDecay(place), target);
}

void Optimizer::AddParts(const std::string& name, std::vector<float>& buffer,
                         std::vector<StatePart>& parts) const {
  if (buffer.empty()) return;
  for (int i = 0; i < tensor_count(); ++i) {
    const StageTensor& place = tensor(i);
    parts.push_back(
        {.tensor = i,
         .name = name,
         .floats = {buffer.data() + place.offset, static_cast<size_t>(place.elements())}});
  }
}

float Optimizer::WeightDecay(const StageTensor& place) const {
  return place.role == TensorRole::kVector ? 0.0f : weight_decay_;
}

void ApplyUpdate(int64_t elements, const float* source, const float* displacement,
                 float learning_rate, float weight_decay, float* target) {
  const float kept = 1.0f - learning_rate * weight_decay;
  for (int64_t i = 0; i < elements; ++i) target[i] = source[i] * kept - displacement[i];
}

}  // namespace pipelag
