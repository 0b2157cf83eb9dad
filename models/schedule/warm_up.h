// How far ahead of its backwards a 1F1B without a flush must run so that the way to the last stage
// and back holds nobody up.
#pragma once

#include <optional>
#include <vector>

#include "models/schedule/generators.h"

namespace pipelag {

struct WarmUpProposal {
  std::vector<int> warmup;  ///< per stage the smallest sufficient number, 0 on the last
  int slope = 1;  ///< smallest k such that k · (p − 1 − s) is sufficient on every stage
};

/// For costs per stage as given, of one chunk per rank. With w_s micro-batches ahead on stage s,
/// the way from stage s to a later stage q and back, Σ(F + B) + 2(q − s) · latency, is taken by 1 +
/// w_s − w_q micro-batches at a time; sufficient is what keeps that within the slowest stage's F +
/// B for each of them, which nothing can go below. For uniform stages: w_s = (p − 1 − s)(1 + ⌈2 ·
/// latency / (F + B)⌉).
WarmUpProposal ProposeWarmUp(const GivenCosts& costs);

/// For a generated schedule: the proposal where the generator takes a warm-up, each rank has one
/// stage and the schedule's own warm-up is too small to hide the latency; else nothing.
std::optional<WarmUpProposal> WarmUpThatHides(const Schedule& schedule, const GivenCosts& costs);

}  // namespace pipelag
