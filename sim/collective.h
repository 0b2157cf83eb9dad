// An all-reduce as rounds of messages between ranks. Knows nothing of links or of time.
#pragma once

#include <cstdint>
#include <vector>

#include "models/units.h"

namespace pipelag {

enum class ReductionAlgorithm : uint8_t { kRing, kTree, kHierarchical };

struct CollectiveMessage {
  int sender = 0;
  int receiver = 0;
  Bytes bytes = 0;

  bool operator==(const CollectiveMessage&) const = default;
};

/// Messages that travel at once; the next round starts when all of them have been delivered.
struct CollectiveRound {
  int repeats = 1;
  std::vector<CollectiveMessage> messages;
};

/// The rounds in which every member comes to hold the sum of `bytes` bytes; none for one member.
/// Pieces are rounded up to whole bytes. Alone, with n members, links of one bandwidth and latency:
///  ring: 2(n − 1) · (⌈bytes/n⌉ ÷ bandwidth + latency): a reduce-scatter, then a gather (Patarasuk
///  and
///        Yuan, "Bandwidth optimal all-reduce algorithms", JPDC 2009);
///  tree: 2⌈log2 n⌉ · (bytes ÷ bandwidth + latency): a binomial tree up and down;
///  hierarchical: a reduce-scatter by rings inside each node, one ring across the nodes per place
///  in a
///        node, a gather inside each node: with g members on each of N nodes
///        2(g − 1) · (⌈bytes/g⌉ inside) + 2(N − 1) · (⌈⌈bytes/g⌉/N⌉ across).
/// `nodes`: node of each member; hierarchical wants equally many members on each, else Error.
std::vector<CollectiveRound> AllReduceRounds(ReductionAlgorithm algorithm,
                                             const std::vector<int>& members,
                                             const std::vector<int>& nodes, Bytes bytes);

}  // namespace pipelag
