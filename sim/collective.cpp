// Ring, tree and hierarchical all-reduce as rounds. Knows nothing of links or of time.
#include "sim/collective.h"

#include <fmt/format.h>

#include <map>

#include "models/error.h"

namespace pipelag {
namespace {

Bytes Piece(Bytes bytes, size_t parts) {
  const auto n = static_cast<Bytes>(parts);
  return bytes / n + (bytes % n != 0 ? 1 : 0);
}

/// Adds one message from each member to the next, the last to the first.
void AddRing(const std::vector<int>& members, Bytes bytes, CollectiveRound& round) {
  for (size_t i = 0; i < members.size(); ++i) {
    round.messages.push_back({members[i], members[(i + 1) % members.size()], bytes});
  }
}

std::vector<CollectiveRound> Ring(const std::vector<int>& members, Bytes bytes) {
  CollectiveRound round{.repeats = 2 * static_cast<int>(members.size() - 1), .messages = {}};
  AddRing(members, Piece(bytes, members.size()), round);
  return {round};
}

std::vector<CollectiveRound> Tree(const std::vector<int>& members, Bytes bytes) {
  std::vector<CollectiveRound> rounds;
  for (size_t reach = 1; reach < members.size(); reach *= 2) {
    CollectiveRound round;
    for (size_t i = reach; i < members.size(); i += 2 * reach) {
      round.messages.push_back({members[i], members[i - reach], bytes});
    }
    rounds.push_back(std::move(round));
  }
  for (size_t up = rounds.size(); up-- > 0;) {
    CollectiveRound down = rounds[up];
    for (CollectiveMessage& message : down.messages) std::swap(message.sender, message.receiver);
    rounds.push_back(std::move(down));
  }
  return rounds;
}

std::vector<CollectiveRound> Hierarchical(const std::vector<int>& members,
                                          const std::vector<int>& nodes, Bytes bytes) {
  std::map<int, std::vector<int>> by_node;
  for (size_t i = 0; i < members.size(); ++i) by_node[nodes[i]].push_back(members[i]);
  const size_t per_node = by_node.begin()->second.size();
  for (const auto& [node, of_node] : by_node) {
    if (of_node.size() == per_node) continue;
    throw Error(
        fmt::format("a hierarchical all-reduce needs as many members on every node, but "
                    "there are {} on one and {} on another",
                    per_node, of_node.size()));
  }
  if (per_node == 1 || by_node.size() == 1) return Ring(members, bytes);
  const Bytes inner = Piece(bytes, per_node);
  CollectiveRound inside{.repeats = static_cast<int>(per_node) - 1, .messages = {}};
  for (const auto& [node, of_node] : by_node) AddRing(of_node, inner, inside);
  CollectiveRound across{.repeats = 2 * static_cast<int>(by_node.size() - 1), .messages = {}};
  for (size_t place = 0; place < per_node; ++place) {
    std::vector<int> ring;
    for (const auto& [node, of_node] : by_node) ring.push_back(of_node[place]);
    AddRing(ring, Piece(inner, ring.size()), across);
  }
  return {inside, across, inside};
}

}  // namespace

std::vector<CollectiveRound> AllReduceRounds(ReductionAlgorithm algorithm,
                                             const std::vector<int>& members,
                                             const std::vector<int>& nodes, Bytes bytes) {
  CHECK(members.size() == nodes.size() && bytes >= 0);
  if (members.size() <= 1) return {};
  switch (algorithm) {
    case ReductionAlgorithm::kRing:
      return Ring(members, bytes);
    case ReductionAlgorithm::kTree:
      return Tree(members, bytes);
    case ReductionAlgorithm::kHierarchical:
      return Hierarchical(members, nodes, bytes);
  }
  CheckFailed(__FILE__, __LINE__, "the algorithm is known");
}

}  // namespace pipelag
