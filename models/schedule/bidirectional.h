// The order that DualPipe and DualPipeV share: what one rank does for its near and its far chunk.
#pragma once

#include "models/schedule/pipelines.h"

namespace pipelag {

/// One chunk of a rank: its placed stage, and the micro-batches that pass through it.
struct BidirectionalChunk {
  int stage = 0;
  int first_microbatch = 0;
};

/// The rank at `depth` of `depths` from the ends inwards does, for chunks 0 (near) and 1 (far), the
/// eight phases of DeepSeek's dualpipe.py, with `main_steps` overlapped pairs both ways. Every pair
/// is an OVERLAP(F, B), but for the very first on the innermost ranks.
std::vector<Action> BidirectionalOrder(int depth, int depths, int main_steps,
                                       const BidirectionalChunk (&chunks)[2]);

}  // namespace pipelag
