// What a schedule means for training, whoever executes it: which weights every gradient is taken at
// and in which order gradients are added. Knows no ranks.
#pragma once

#include <optional>
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
  /// Whether ranks still have the weights of a batch when its gradient is applied.
  bool keeps_weights = true;
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

/// How late all forwards and backwards of a stage are; none if some are later than others.
std::optional<int> OneDelayOf(const SerialStage& stage);

/// Throws Error for what does not go together: a split into another number of stages; a tied
/// embedding whose holders do not read it at the same versions; recomputation under a plan whose
/// backwards have other weights than their forwards, of which other numbers would come; a
/// correction that reads the weights a gradient was taken at, where they are several versions or
/// gone.
void CheckPlan(const SerialPlan& plan, const TrainingOptions& options);

}  // namespace pipelag
