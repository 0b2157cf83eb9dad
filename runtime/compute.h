// What a stage does with buffers: one half of a backend. Independent of how buffers move between
// ranks. Knows no schedule: which slot, version or accumulator to use is in the task.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "models/schedule/program.h"
#include "runtime/event.h"

namespace pipelag {

/// What one rank needs of every kind of buffer, as the program says.
struct StagePlan {
  int stage = 0;            ///< placed stage
  int activation_slots = 0;
  int weight_buffers = 0;
  int gradient_buffers = 0;
};
struct MessagePlan {
  int lane = 0;
  int buffers = 0;
};
struct RankPlan {
  int rank = 0;
  std::vector<StagePlan> stages;
  std::vector<MessagePlan> messages;  ///< of lanes that begin or end here
};

/// An F, B or U to be done, or (AR) the squared norms of a stage's gradients to be taken.
struct ComputeTask {
  RunAction action;
  int activation = -1;              ///< F, B: slot of the stage
  int weights = -1;                 ///< F, B: buffer read; U: buffer of the newest version
  int target = -1;                  ///< U: buffer the next version is written to, may be `weights`
  int gradients = -1;               ///< B: accumulator added to; U: read, then cleared; AR: read
  const std::byte* input = nullptr;  ///< message consumed; null where the stage has none
  std::byte* output = nullptr;       ///< message produced; null where the stage has none
  double* loss = nullptr;            ///< F of a last stage: receives Σ token losses
  /// AR: receives the stage's squared norms at their tensors' global places, other places untouched.
  /// U: the sums over all stages to clip by; null without clipping.
  double* norms = nullptr;
};

/// Does tasks in the order in which they are started (the compute lane), each after the events given.
/// Buffers named by tasks exist from construction, accumulators are zero, weight buffer 0 of every
/// stage holds version 0.
class Compute {
 public:
  virtual ~Compute() = default;
  /// `message` bytes live in the backend's memory and stay where they are.
  virtual std::byte* MessageBuffer(int lane, int index) = 0;
  virtual EventPtr Start(const ComputeTask& task, std::span<const EventPtr> after) = 0;
};

}  // namespace pipelag
