// What a device holds of parameters while they are trained: weights, gradients, the optimizer's
// states, by precision and optimizer. Knows no stages and no time.
#pragma once

#include <string>
#include <vector>

#include "models/architecture/work.h"
#include "models/hardware/machine.h"
#include "models/optimizer_cost.h"

namespace pipelag {

/// Per parameter.
struct NumberBytes {
  int weight = 2;
  int gradient = 4;  ///< of the accumulator, which is what is reduced
  int own = 4;       ///< master copies, beside the optimizer's state
};

/// Megatron's mixed precision (arXiv 2205.05198, figure 1: 18 bytes per parameter with Adam):
/// 16-bit weights; fp32 accumulators with bf16; with fp16 those are of 16 bits and copied to fp32
/// for the update.
NumberBytes BytesPerParameter(Precision precision);

/// The part's parameters as an optimizer sees them: a matrix for each product by weights, one
/// vector of the rest.
std::vector<ParameterShape> TensorsOf(const PartWork& work);

struct StateBytes {
  Bytes weights = 0;
  Bytes gradients = 0;
  Bytes optimizer = 0;  ///< with master copies

  StateBytes& operator+=(const StateBytes& other);
};
/// Nothing sharded. Throws Error for an optimizer that is not known.
StateBytes StateBytesOf(const PartWork& work, Precision precision, const std::string& optimizer);

}  // namespace pipelag
