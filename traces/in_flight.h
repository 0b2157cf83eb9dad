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

}  // namespace pipelag
