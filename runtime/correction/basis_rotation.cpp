#include "runtime/correction/basis_rotation.h"

#include <fmt/format.h>

#include "models/error.h"

namespace pipelag {
namespace {

RotatedAdamOptions Rotated(const OptimizerOptions& options) {
  if (options.name != "adamw") {
    throw Error(fmt::format("basis-rotation rotates adamw and does not go with {}", options.name));
  }
  return {.beta1 = options.beta1.value_or(0.9f),
          .beta2 = options.beta2.value_or(0.95f),
          .epsilon = options.epsilon.value_or(1e-8f),
          .weight_decay = options.weight_decay.value_or(0.1f),
          .basis_updates = options.basis_updates.value_or(10),
          .rotated = [](const StageTensor& place) { return place.role == TensorRole::kMatrix; }};
}

}  // namespace

BasisRotation::BasisRotation(const OptimizerOptions& options, const StageLayout& layout)
    : RotatedAdam(Rotated(options), layout) {}

}  // namespace pipelag
