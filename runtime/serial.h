// The serial reference: the same network in one thread, with the gradient delays of a schedule, or
// with delays by hand. What every other way of running must agree with to the last bit.
#pragma once

#include "runtime/serial_plan.h"

namespace pipelag {

/// Update t uses batch t; there is no empty step, and rate and bias correction advance with real
/// updates. The trace has one rank.
TrainingResult TrainSerially(const SerialPlan& plan, const TrainingOptions& options,
                             const Corpus& corpus);

}  // namespace pipelag
