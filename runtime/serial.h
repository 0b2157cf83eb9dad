// The serial reference: the same network in one thread, with the gradient delays of a schedule, or
// with delays by hand. What every other way of running must agree with to the last bit.
#pragma once

#include <vector>

#include "models/schedule/program.h"
#include "runtime/training.h"

namespace pipelag {

/// Which versions the micro-batches of a batch read on one stage, and in which order their
/// gradients are added. Version of batch t: max(0, t − delay), or with k synchronous steps t below
/// k and max(k, t − delay) from k on.
struct SerialStage {
  std::vector<int> forward_delay;   ///< by micro-batch of the step
  std::vector<int> backward_delay;  ///< by micro-batch of the step
  /// Micro-batches of the step: one list per copy of the stage, as many of every replica, replica
  /// after replica. Each list is summed from nothing; the sums of a replica are added in order,
  /// then those of the replicas.
  std::vector<std::vector<int>> backward_order;
};

struct SerialPlan {
  std::string name;
  int microbatches = 1;  ///< of a step, all replicas' together
  int64_t steps = 1;
  std::vector<SerialStage> stages;
  /// A synchronous start: batches before this step read their own version, and no later batch reads
  /// a version before it, as when a pipeline is flushed there and then runs without flushes.
  int64_t synchronous_steps = 0;
  int replicas = 1;
};

/// Read off a schedule.
SerialPlan PlanOf(const Program& program);

/// By hand: one delay per stage (one entry: all stages alike), ascending order; `microbatches` for
/// each of the replicas. Throws Error for a negative delay or a number of delays that is neither 1
/// nor `stages`.
SerialPlan PlanOfDelays(const std::vector<int>& delays, int stages, int microbatches, int64_t steps,
                        int replicas = 1);

/// Throws Error if the embedding is tied and its two holders do not read it at the same versions.
void CheckTied(const SerialPlan& plan, const NetworkShape& shape);

/// Throws Error if anything is to be computed again under a plan whose backwards have other weights
/// than their forwards: other numbers would come of it.
void CheckRecompute(const SerialPlan& plan, Recompute recompute);

/// Update t uses batch t; there is no empty step, and rate and bias correction advance with real
/// updates. The trace has one rank.
TrainingResult TrainSerially(const SerialPlan& plan, const TrainingOptions& options,
                             const Corpus& corpus);

}  // namespace pipelag
