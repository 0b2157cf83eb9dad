// The serial reference: the same network in one thread, with the gradient delays of a schedule, or
// with delays by hand. What every other way of running must agree with to the last bit.
#pragma once

#include <vector>

#include "models/schedule/program.h"
#include "runtime/training.h"

namespace pipelag {

/// Which versions the micro-batches of a batch read on one stage, and in which order their gradients
/// are added. Version of batch t: max(0, t − delay).
struct SerialStage {
  std::vector<int> forward_delay;   ///< by micro-batch of the step
  std::vector<int> backward_delay;  ///< by micro-batch of the step
  std::vector<int> backward_order;  ///< micro-batches of the step
};

struct SerialPlan {
  std::string name;
  int microbatches = 1;
  int64_t steps = 1;
  std::vector<SerialStage> stages;
};

/// Read off a schedule.
SerialPlan PlanOf(const Program& program);

/// By hand: one delay per stage (one entry: all stages alike), ascending order. Throws Error for a
/// negative delay or a number of delays that is neither 1 nor `stages`.
SerialPlan PlanOfDelays(const std::vector<int>& delays, int stages, int microbatches,
                        int64_t steps);

/// Update t uses batch t; there is no empty step, and rate and bias correction advance with real
/// updates. The trace has one rank.
TrainingResult TrainSerially(const SerialPlan& plan, const TrainingOptions& options,
                             const Corpus& corpus);

}  // namespace pipelag
