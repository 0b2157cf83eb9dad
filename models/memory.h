// How large the things are that a rank keeps in its device's memory, and who of them is there for
// the whole run. Knows no time.
#pragma once

#include <vector>

#include "models/schedule/program.h"
#include "models/units.h"

namespace pipelag {

/// Bytes of one stage.
struct StageMemory {
  Bytes weights = 0;     ///< one version
  Bytes gradients = 0;   ///< one accumulator
  Bytes optimizer = 0;   ///< state of optimizer and delay correction
  Bytes activation = 0;  ///< of one micro-batch, from F's start to the end of its B, or of I and W
  Bytes freed_at_input =
      0;                ///< as much of `activation` is freed at the end of I already; negative:
                        ///< as much more is there from then on, as W needs what I recomputed
  Bytes message = 0;    ///< one message the stage sends, of either payload
  Bytes workspace = 0;  ///< beside all that while one of its actions runs
};

/// A whole network, by slice, and the devices it is put on.
struct MemorySizes {
  std::vector<StageMemory> stages;
  Bytes device = 0;  ///< 0: not known
};

/// What a rank holds from the start of a run to its end: every buffer is there before it is needed.
struct StandingMemory {
  Bytes weights = 0;    ///< the newest version of each stage
  Bytes stash = 0;      ///< the other versions that are live at once
  Bytes gradients = 0;  ///< as many accumulators as batches are summed at once
  Bytes optimizer = 0;
  Bytes transfer_buffers = 0;  ///< receive slots times the largest message of their lane
  Bytes workspace = 0;         ///< the largest of its stages'

  Bytes Total() const {
    return weights + stash + gradients + optimizer + transfer_buffers + workspace;
  }
  bool operator==(const StandingMemory&) const = default;
};

/// Per rank. `receive_slots` per lane; 0: NeverDelayingSlots. Replicas of a slice (two streams)
/// each hold all of it. Throws Error if `sizes` are not for this number of stages, or a size is
/// negative or beyond 64 TiB.
std::vector<StandingMemory> StandingMemoryOf(const Program& program, const MemorySizes& sizes,
                                             int receive_slots = 0);
/// The same with the receive slots of each lane.
std::vector<StandingMemory> StandingMemoryOf(const Program& program, const MemorySizes& sizes,
                                             const std::vector<int>& slots);

}  // namespace pipelag
