#include "runtime/optimizer/rotated_adam.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "models/error.h"

namespace pipelag {
namespace {

/// Of the sides that are rotated.
int64_t LargestSide(const StageLayout& layout, bool (*rotated)(const StageTensor&)) {
  int64_t largest = 0;
  for (const StageTensor& place : layout.tensors()) {
    if (!rotated(place)) continue;
    for (const int64_t side : {place.rows, place.cols}) {
      if (side <= MatrixBasis::kLargestSide) largest = std::max(largest, side);
    }
  }
  return largest;
}

}  // namespace

RotatedAdam::RotatedAdam(const RotatedAdamOptions& options, const StageLayout& layout)
    : Optimizer(layout, options.weight_decay),
      options_(options),
      first_(static_cast<size_t>(layout.size()), 0.0f),
      second_(first_),
      rotated_gradient_(static_cast<size_t>(largest_tensor())),
      rotated_first_(rotated_gradient_),
      scratch_(LargestSide(layout, options.rotated), largest_tensor()) {
  if (options.basis_updates < 1) {
    throw Error(fmt::format("a basis must be refreshed every 1 or more updates, not {}",
                            options.basis_updates));
  }
  for (const StageTensor& place : layout.tensors()) {
    bases_.emplace_back();
    if (options.rotated(place)) bases_.back().emplace(place.rows, place.cols);
  }
}

std::vector<StatePart> RotatedAdam::State() {
  std::vector<StatePart> parts;
  AddParts("exp_avg", first_, parts);
  AddParts("exp_avg_sq", second_, parts);
  for (int i = 0; i < tensor_count(); ++i) {
    auto& basis = bases_[static_cast<size_t>(i)];
    if (!basis) continue;
    for (const auto& [name, values] : basis->State()) {
      if (!values.empty()) parts.push_back({.tensor = i, .name = name, .floats = values});
    }
  }
  return parts;
}

int64_t RotatedAdam::StateFloats(int index) const {
  const auto& basis = bases_[static_cast<size_t>(index)];
  return 2 * tensor(index).elements() + (basis ? basis->state_floats() : 0);
}

void RotatedAdam::ComputeUpdate(const TensorUpdate& update, float* displacement) {
  const StageTensor& place = tensor(update.tensor);
  const int64_t elements = place.elements();
  auto& basis = bases_[static_cast<size_t>(update.tensor)];
  if (update.number == 1) {
    if (basis) {
      basis->Observe(update.gradient, options_.beta2);
      basis->Start(scratch_);
    }
    std::fill_n(displacement, elements, 0.0f);
    return;
  }
  const int64_t number = update.number - 1;
  float* first = first_.data() + place.offset;
  float* second = second_.data() + place.offset;
  const float old1 = options_.beta1;
  const float old2 = options_.beta2;
  const float new1 = 1 - old1;
  const float new2 = 1 - old2;
  for (int64_t i = 0; i < elements; ++i) first[i] = old1 * first[i] + new1 * update.gradient[i];
  const float* g = update.gradient;
  const float* m = first;
  if (basis) {
    basis->Rotate(update.gradient, rotated_gradient_.data(), scratch_);
    basis->Rotate(first, rotated_first_.data(), scratch_);
    g = rotated_gradient_.data();
    m = rotated_first_.data();
  }
  const auto n = static_cast<double>(number);
  const double correction1 = 1 - std::pow(static_cast<double>(old1), n);
  const double correction2 = 1 - std::pow(static_cast<double>(old2), n);
  const auto step = static_cast<float>(static_cast<double>(update.learning_rate) *
                                       std::sqrt(correction2) / correction1);
  const float epsilon = options_.epsilon;
  float* direction = basis ? rotated_gradient_.data() : displacement;
  for (int64_t i = 0; i < elements; ++i) {
    const float v = old2 * second[i] + new2 * (g[i] * g[i]);
    second[i] = v;
    direction[i] = step * m[i] / (std::sqrt(v) + epsilon);
  }
  if (!basis) return;
  basis->RotateBack(direction, displacement, scratch_);
  basis->Observe(update.gradient, old2);
  if (number % options_.basis_updates == 0) basis->Refresh(second, scratch_);
}

}  // namespace pipelag
