// DualPipe (DeepSeek-V3 technical report, 2024; the order of the released dualpipe.py): half of the
// micro-batches enter at either end, every rank holds one stage of each direction, and in the
// middle the forward of one direction overlaps the backward of the other. Each slice of the network
// is held twice; its holders exchange their gradients before they update.
#include <fmt/format.h>

#include <algorithm>

#include "models/schedule/bidirectional.h"

namespace pipelag {

Schedule GenerateDualPipe(const GeneratorOptions& options) {
  const int p = options.ranks;
  const int m = options.microbatches;
  if (p % 2 != 0) {
    throw Error(
        fmt::format("dualpipe pairs its ranks, so their number must be even, not {} (--ranks)", p));
  }
  if (m % 2 != 0 || m < 2 * p) {
    throw Error(
        fmt::format("dualpipe needs an even number of at least {} micro-batches (twice the "
                    "ranks), not {} (--microbatches)",
                    2 * p, m));
  }
  Schedule schedule;
  schedule.name = "dualpipe";
  schedule.ranks = schedule.stages = p;
  schedule.streams = 2;
  schedule.microbatches = m;
  for (int s = 0; s < p; ++s) schedule.placement.push_back(s);
  for (int s = 0; s < p; ++s) schedule.placement.push_back(p - 1 - s);
  for (int s = 0; s < p; ++s) {
    schedule.groups.push_back({CollectiveGroup::Purpose::kWeights,
                               {schedule.PlacedStage(0, s), schedule.PlacedStage(1, s)}});
  }
  // The exchange of a weight group is its reduction over replicas too: one AR does both.
  GeneratorOptions others = options;
  others.reduction = false;
  AddGroups(schedule, others);
  const int half = p / 2;
  for (int rank = 0; rank < p; ++rank) {
    const BidirectionalChunk down{schedule.PlacedStage(0, rank), 0};
    const BidirectionalChunk up{schedule.PlacedStage(1, p - 1 - rank), m / 2};
    const bool top = rank < half;
    const int depth = std::min(rank, p - 1 - rank);
    schedule.body.push_back(
        BidirectionalOrder(depth, half, m / 2 - p + depth + 1, {top ? down : up, top ? up : down}));
  }
  AppendUpdates(schedule);
  return schedule;
}

/// The published bubble (p/2 − 1)(O + B − 3W), which is exact where F = I and W ≤ I.
std::vector<Fact> FactsOfDualPipe(const GeneratorOptions& options) {
  const int64_t p = options.ranks;
  const int64_t m = options.microbatches;
  std::vector<Fact> facts = {
      {Quantity::kIdleOfMakespan, "(p − 2) / (3m + p − 2)", {{p - 2, 3 * m + p - 2}}},
      {Quantity::kInFlight, "p + 1", {p + 1}}};
  AddFlushFacts(facts);
  return facts;
}

}  // namespace pipelag
