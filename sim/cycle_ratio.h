// Maximum cycle ratio of a periodic event graph, exactly. Pure graph arithmetic: knows nothing of
// schedules.
#pragma once

#include <cstdint>
#include <vector>

#include "traces/metrics.h"

namespace pipelag {

/// A dependency between the repetitions of two nodes: `to` in repetition T starts no earlier than
/// `weight` after the start of `from` in repetition T − tokens. Tokens may be negative as long as
/// the tokens of every cycle have a positive sum.
struct CycleEdge {
  int32_t from = 0;
  int32_t to = 0;
  int64_t weight = 0;
  int32_t tokens = 0;
};

struct CycleRatio {
  StepTime ratio;          ///< Σ weight / Σ tokens of the dearest cycle, in lowest terms
  std::vector<int> cycle;  ///< its edges in order
};

/// Howard's policy iteration (Cochet-Terrasson, Cohen, Gaubert, Mc Gettrick, Quadrat, 1998) in
/// integer arithmetic: it ends with node potentials under which no edge is violated, which proves
/// that no cycle is dearer. The graph must be strongly connected. `policy[v]` names for every node
/// an edge that ends in it; the cycles of this first choice must have positive token sums. Throws
/// InternalError on a cycle without tokens (a deadlock).
CycleRatio MaximumCycleRatio(int nodes, const std::vector<CycleEdge>& edges,
                             std::vector<int> policy);

}  // namespace pipelag
