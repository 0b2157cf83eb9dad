#include "runtime/optimizer/mars.h"

#include <cmath>

#include "runtime/optimizer/norm.h"

namespace pipelag {
namespace {

constexpr float kGamma = 0.025f;

OptimizerOptions OfMatrices(OptimizerOptions options) {
  options.beta1 = options.beta1.value_or(0.95f);
  options.beta2 = options.beta2.value_or(0.99f);
  return options;
}

OptimizerOptions OfVectors(OptimizerOptions options) {
  options.beta1.reset();
  options.beta2.reset();
  return options;
}

bool IsMatrix(const StageTensor& place) { return place.role != TensorRole::kVector; }
bool IsVector(const StageTensor& place) { return place.role == TensorRole::kVector; }

}  // namespace

Mars::Mars(const OptimizerOptions& options, const StageLayout& layout)
    : Optimizer(layout, options.weight_decay.value_or(0.1f)),
      beta1_(*OfMatrices(options).beta1),
      matrices_(OfMatrices(options), layout, &IsMatrix),
      vectors_(OfVectors(options), layout, &IsVector),
      previous_(static_cast<size_t>(layout.size()), 0.0f),
      reduced_(static_cast<size_t>(largest_tensor())) {}

std::vector<StatePart> Mars::State() {
  std::vector<StatePart> parts = matrices_.State();
  const std::vector<StatePart> vectors = vectors_.State();
  parts.insert(parts.end(), vectors.begin(), vectors.end());
  AddParts("previous_gradient", previous_, parts);
  std::erase_if(parts, [&](const StatePart& part) {
    return part.name == "previous_gradient" && IsVector(tensor(part.tensor));
  });
  return parts;
}

int64_t Mars::StateFloats(int index) const {
  return IsVector(tensor(index)) ? vectors_.StateFloats(index)
                                 : matrices_.StateFloats(index) + tensor(index).elements();
}

void Mars::ComputeUpdate(const TensorUpdate& update, float* displacement) {
  const StageTensor& place = tensor(update.tensor);
  if (IsVector(place)) {
    vectors_.ComputeUpdate(update, displacement);
    return;
  }
  float* previous = previous_.data() + place.offset;
  const float weight = kGamma * beta1_ / (1 - beta1_);
  for (int64_t i = 0; i < place.elements(); ++i) {
    const float g = update.gradient[i];
    reduced_[static_cast<size_t>(i)] = g + weight * (g - previous[i]);
    previous[i] = g;
  }
  const double norm = std::sqrt(SquaredNorm(place.elements(), reduced_.data()));
  if (norm > 1) {
    const auto factor = static_cast<float>(1 / norm);
    for (int64_t i = 0; i < place.elements(); ++i) reduced_[static_cast<size_t>(i)] *= factor;
  }
  TensorUpdate inner = update;
  inner.gradient = reduced_.data();
  matrices_.ComputeUpdate(inner, displacement);
}

}  // namespace pipelag
