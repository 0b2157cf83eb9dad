#include "runtime/optimizer/soap.h"

namespace pipelag {

Soap::Soap(const OptimizerOptions& options, const StageLayout& layout)
    : RotatedAdam(
          {.beta1 = options.beta1.value_or(0.95f),
           .beta2 = options.beta2.value_or(0.95f),
           .epsilon = options.epsilon.value_or(1e-8f),
           .weight_decay = options.weight_decay.value_or(0.1f),
           .basis_updates = options.basis_updates.value_or(10),
           .rotated = [](const StageTensor& place) { return place.role != TensorRole::kVector; }},
          layout) {}

}  // namespace pipelag
