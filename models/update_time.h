// How long a device takes for the optimizer update of a stage, from the shapes of its tensors.
// Knows no tensors' values, no schedule and no clock.
#pragma once

#include <vector>

#include "models/compute_rate.h"
#include "models/network.h"
#include "models/optimizer_cost.h"
#include "models/units.h"

namespace pipelag {

/// The tensors of a stage: those of its layers, the embeddings on the first stage, final norm and
/// head on the last one. A tied embedding is there once on every stage that holds it. Throws Error
/// if the shape is ill-formed.
std::vector<ParameterShape> StageParameters(const NetworkShape& shape, LayerRange range);

/// Of the whole network, a tied embedding once.
int64_t NetworkParameters(const NetworkShape& shape);

struct DeviceRates {
  ComputeRate compute;  ///< of matrix products
  Bandwidth memory;
};

/// The passes over memory at the memory's bandwidth, which hide their arithmetic, and behind them
/// the matrix products at the rate of compute; both rounded up to whole nanoseconds. Numbers are
/// fp32. Throws Error if that is longer than nanoseconds can count.
Nanoseconds UpdateTime(const UpdateCost& cost, const DeviceRates& rates);

}  // namespace pipelag
