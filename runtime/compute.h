// What a stage does with buffers: one half of a backend. Independent of how buffers move between
// ranks. Knows no schedule: which slot, version or accumulator to use is in the task.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "models/schedule/program.h"
#include "runtime/event.h"

namespace pipelag {

/// An F, B, I, W or U to be done, or (AR) the squared norms of a stage's gradients to be taken.
struct ComputeTask {
  RunAction action;
  int activation = -1;          ///< F, B, I, W: slot of the stage; worthless after B and W
  int kept = -1;                ///< I: slot filled; W: slot read, worthless afterwards
  int weights = -1;             ///< F, B, I: buffer read; U: buffer of the newest version
  int taken_at = -1;            ///< U: buffer the gradients were taken at; -1 if it is gone
  int target = -1;              ///< U: buffer the next version is written to, may be `weights`
  int gradients = -1;           ///< B, W: accumulator added to; U: read, then cleared; AR: read
  std::byte* input = nullptr;   ///< message consumed, worthless afterwards; null: none
  std::byte* output = nullptr;  ///< message produced; null: none
  double* loss = nullptr;       ///< F of a last stage: receives Σ token losses
  /// AR: receives the stage's squared norms at their tensors' global places, other places, that of
  /// a tensor shared with another stage included, untouched. U: the sums over all stages to clip
  /// by; null without clipping.
  double* norms = nullptr;
};

/// Where squared norms are gathered for a sum over all ranks; empty: the backend has no place of
/// its own.
struct NormPlace {
  std::span<double> values;
  EventPtr cleared;  ///< after which all of them are zero
};

/// Does tasks in the order in which they are started (the compute lane), each after the events
/// given. Buffers named by tasks exist from construction, accumulators are zero, weight buffer a of
/// every stage holds version −a, as many as the stage's plan has history.
class Compute {
 public:
  virtual ~Compute() = default;
  /// `message` bytes live in the backend's memory and stay where they are.
  virtual std::byte* MessageBuffer(int lane, int index) = 0;
  /// An accumulator of one stage, in the backend's memory.
  virtual std::span<float> GradientBuffer(int stage, int index) = 0;
  /// The part of it that belongs to the tensor which this stage shares with another.
  virtual std::span<float> SharedGradient(int stage, int index) = 0;
  /// In the backend's memory, one value per tensor of the network, for the norm of one step of this
  /// run until its updates have been started. Once per step.
  virtual NormPlace NormsOf(int64_t /*step*/) { return {}; }
  virtual EventPtr Start(const ComputeTask& task, std::span<const EventPtr> after) = 0;
};

}  // namespace pipelag
