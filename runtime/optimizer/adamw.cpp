#include "runtime/optimizer/adamw.h"

#include <cmath>

#include "models/error.h"

namespace pipelag {

AdamW::AdamW(const OptimizerOptions& options, const StageLayout& layout)
    : AdamW(options, layout, [](const StageTensor&) { return true; }) {}

AdamW::AdamW(const OptimizerOptions& options, const StageLayout& layout,
             bool (*held)(const StageTensor&))
    : Optimizer(layout, AdamWSettings(options).weight_decay), settings_(options) {
  for (const StageTensor& place : layout.tensors()) {
    const auto elements = held(place) ? static_cast<size_t>(place.elements()) : 0;
    moments_.push_back({std::vector<float>(elements), std::vector<float>(elements)});
  }
}

std::vector<StatePart> AdamW::State() {
  std::vector<StatePart> parts;
  for (int i = 0; i < tensor_count(); ++i) {
    Moments& moments = moments_[static_cast<size_t>(i)];
    if (moments.first.empty()) continue;
    parts.push_back({.tensor = i, .name = "exp_avg", .floats = moments.first});
    parts.push_back({.tensor = i, .name = "exp_avg_sq", .floats = moments.second});
  }
  return parts;
}

int64_t AdamW::StateFloats(int tensor) const {
  return 2 * static_cast<int64_t>(moments_[static_cast<size_t>(tensor)].first.size());
}

void AdamW::ComputeUpdate(const TensorUpdate& update, float* displacement) {
  Moments& moments = moments_[static_cast<size_t>(update.tensor)];
  const auto elements = static_cast<int64_t>(moments.first.size());
  CHECK(elements == tensor(update.tensor).elements());
  // The corrections in double: 1 − β^n of the first updates would lose digits in float.
  const auto n = static_cast<double>(update.number);
  const double correction1 = 1 - std::pow(static_cast<double>(settings_.beta1), n);
  const double correction2 = 1 - std::pow(static_cast<double>(settings_.beta2), n);
  const float step = static_cast<float>(static_cast<double>(update.learning_rate) / correction1);
  const float inverse_root = static_cast<float>(1 / std::sqrt(correction2));
  // Copies: for all the compiler knows, a store to the moments could change a member.
  const float old1 = settings_.beta1;
  const float old2 = settings_.beta2;
  const float new1 = 1 - old1;
  const float new2 = 1 - old2;
  const float epsilon = settings_.epsilon;
  float* first = moments.first.data();
  const float* gradient = update.gradient;
  float* second = moments.second.data();
  for (int64_t i = 0; i < elements; ++i) {
    const float g = gradient[i];
    const float m = old1 * first[i] + new1 * g;
    const float v = old2 * second[i] + new2 * (g * g);
    first[i] = m;
    second[i] = v;
    displacement[i] = step * m / (std::sqrt(v) * inverse_root + epsilon);
  }
}

}  // namespace pipelag
