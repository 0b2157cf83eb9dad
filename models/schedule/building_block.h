// Orders by building blocks: the passes of one micro-batch through a V, drawn once in slots of
// equal length and repeated every period (Qi et al., "Pipeline Parallelism with Controllable
// Memory", arXiv 2405.15362, section 3). How far apart neighbours stand in the drawing is what a
// rank holds.
#pragma once

#include <optional>
#include <vector>

#include "models/schedule/schedule.h"

namespace pipelag {

/// Slots from a rank's pass to its neighbour's, on the four ways of a micro-batch through the V.
/// A rank holds about p times their sum over the period, in activations of a chunk: in the period
/// of 6 that leaves no slot empty the sum is 4 for V-Min, 6 for V-Half, 12 for the memory of 1F1B.
struct BlockSlope {
  int forward_down = 1;
  int forward_up = 1;
  int input_down = 1;
  int input_up = 1;
};

/// Per rank the order of all F and I of a pipeline with two chunks in a V. Turns take the fewest
/// slots at which no rank has two passes of the repeated drawing in one slot; nothing if there are
/// none. `period`: slots from a micro-batch to the next, 6 at least.
std::optional<std::vector<std::vector<Action>>> RepeatBlock(const Schedule& pipeline,
                                                            const BlockSlope& slope, int period);

}  // namespace pipelag
