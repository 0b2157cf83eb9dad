// What an update costs a step by waiting for others: reductions over replicas, a norm, a barrier.
// Knows no clock and no schedule names.
#pragma once

#include <optional>

#include "sim/steady_state.h"

namespace pipelag {

struct ReductionCost {
  StepTime with;     ///< the exact step time
  StepTime without;  ///< as if updates waited for nothing but their own stage
  /// The longest time that every reduction of gradients may take at once without making the step
  /// longer than `without`; none if there are no such reductions, or if the order alone already
  /// does.
  std::optional<Nanoseconds> longest_hidden;
  /// By how much the longest of them exceeds that.
  Nanoseconds too_long{0};

  bool hidden() const { return with == without; }
  /// Of every step, rounded up.
  Nanoseconds Cost() const;
};

/// Of a program whose schedule has groups. Finds `longest_hidden` by Newton's method on the step
/// time, which as a function of the reductions' time is a maximum of straight lines: one per cycle,
/// whose slope is its reductions per step. Of PipeDream-2BW in the order of 1F1B with late updates,
/// of uniform stages without latency, that is (m − w_0)(F + B) where w_0 > 0.
ReductionCost CostOfReductions(const Program& program, const ActionTimes& times,
                               int receive_slots = 0);

}  // namespace pipelag
