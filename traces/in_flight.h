// How many stage activations each rank holds over time. Knows no bytes.
#pragma once

#include <vector>

#include "models/units.h"
#include "traces/trace.h"

namespace pipelag {

/// From `time` on, `held` activations.
struct HeldActivations {
  Nanoseconds time{0};
  int64_t held = 0;
  bool operator==(const HeldActivations&) const = default;
};

/// Per rank, by time, one entry per instant at which something changes. An activation is held from
/// its F's start to the end of the B or W of the same (rank, stage, micro-batch); at one instant
/// ends come before starts. A B or W whose F is not in the trace frees nothing.
std::vector<std::vector<HeldActivations>> ActivationsInFlight(const Trace& trace);

/// Into how many stages the network is cut: those that the first F's micro-batch passes through. A
/// trace's own number is that of placed stages, which counts those of either direction.
int StagesOfNetwork(const Trace& trace);

/// Activations of stages, of which the network has `stages`, in shares: what a network cut into as
/// many stages as there are ranks holds per stage and micro-batch. A chunk of v per rank counts
/// 1/v; a stage of dualpipe, which holds the network twice, a whole one.
inline double InShares(int64_t held, int ranks, int stages) {
  return static_cast<double>(held * ranks) / stages;
}

}  // namespace pipelag
