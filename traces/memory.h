// A rank's memory over a run: what stands the whole time, and activations as they come and go.
// Knows nothing of who produced the trace.
#pragma once

#include <vector>

#include "models/memory.h"
#include "models/schedule/schedule.h"
#include "traces/trace.h"

namespace pipelag {

/// From `time` on, `bytes` are held.
struct HeldBytes {
  Nanoseconds time{0};
  Bytes bytes = 0;
  bool operator==(const HeldBytes&) const = default;
};

struct RankMemory {
  StandingMemory standing;
  Bytes peak_activations = 0;
  Bytes peak = 0;                ///< both together
  Nanoseconds peak_time{0};      ///< when it is reached first
  std::vector<HeldBytes> curve;  ///< all that is held, by time, an entry per change; none if the
                                 ///< rank does nothing
};

/// Per rank. An activation is held from its F's start; `freed_at_input` of it goes at the end of
/// its I, the rest at the end of its B or W. At one instant what goes makes room for what comes.
/// Slices of `sizes` stand for placed stages as they repeat: stage s is slice s mod slices.
/// `standing` has an entry per rank.
std::vector<RankMemory> MemoryOverTime(const Trace& trace, const MemorySizes& sizes,
                                       const std::vector<StandingMemory>& standing);

/// A finding per rank that needs more than its device has: how much, by how much too much, and
/// when. None if the device's memory is not known.
std::vector<Finding> BeyondMemory(const std::vector<RankMemory>& ranks, Bytes device);

}  // namespace pipelag
