// ZB-V (Qi et al., "Pipeline Parallelism with Controllable Memory", 2024): two chunks per rank in a
// V, split backwards, the memory of 1F1B. The static order of PyTorch's ScheduleZBVZeroBubble,
// which is built for m ≥ 2p − 1 and below that for 2p − 1 and then trimmed.
#include <algorithm>

#include "models/schedule/endless.h"

namespace pipelag {
namespace {

/// Appends to one rank's body, counting the micro-batches of each kind and chunk.
class RankOrder {
 public:
  RankOrder(Schedule& schedule, int rank)
      : body_(schedule.body[static_cast<size_t>(rank)]),
        stages_{rank, schedule.stages - 1 - rank},
        m_(schedule.microbatches) {}

  int done(ActionKind kind, int chunk) const { return counts_[static_cast<size_t>(kind)][chunk]; }
  void Add(ActionKind kind, int chunk) {
    const int i = counts_[static_cast<size_t>(kind)][chunk]++;
    if (i < m_) body_.push_back(MakeAction(kind, stages_[chunk], i));
  }
  void AddInputAndWeight(int chunk) {
    Add(ActionKind::kBackwardInput, chunk);
    Add(ActionKind::kBackwardWeight, chunk);
  }

 private:
  std::vector<Action>& body_;
  int stages_[2];
  int m_;
  int counts_[static_cast<size_t>(ActionKind::kBackwardWeight) + 1][2] = {};
};

void FillRank(Schedule& schedule, int rank) {
  constexpr auto kF = ActionKind::kForward;
  constexpr auto kI = ActionKind::kBackwardInput;
  constexpr auto kW = ActionKind::kBackwardWeight;
  const int p = schedule.ranks;
  const int m = std::max(2 * p - 1, schedule.microbatches);
  RankOrder order(schedule, rank);
  for (int i = 0; i < 2 * (p - rank) - 1; ++i) order.Add(kF, 0);
  for (int i = 0; i < rank; ++i) {
    order.Add(kF, 1);
    order.Add(kF, 0);
  }
  for (int i = 0; i < p - rank; ++i) {
    order.Add(kF, 1);
    order.AddInputAndWeight(1);
  }
  while (order.done(kF, 1) < order.done(kF, 0) || order.done(kF, 0) < m) {
    if (order.done(kF, 0) < m) order.Add(kF, 0);
    order.AddInputAndWeight(0);
    order.Add(kF, 1);
    order.AddInputAndWeight(1);
  }
  for (int i = 0; i < rank; ++i) {
    order.Add(kI, 0);
    order.Add(kI, 1);
  }
  for (int i = 0; i < p - rank; ++i) order.AddInputAndWeight(0);
  while (order.done(kW, 1) < order.done(kI, 1)) order.Add(kW, 1);
  while (order.done(kW, 0) < order.done(kI, 0)) order.Add(kW, 0);
}

}  // namespace

/// The steady part of the order, without its way in: an endless run starts up a little less
/// densely.
EndlessOrder EndlessZbV(const GeneratorOptions& options) {
  EndlessOrder order{VPipeline("zb-v", options)};
  const int p = options.ranks;
  for (int rank = 0; rank < p; ++rank) {
    const int up = 2 * p - 1 - rank;
    order.pipeline.body[static_cast<size_t>(rank)] = {
        MakeAction(ActionKind::kForward, rank, 2 * p - 1 - rank),
        MakeAction(ActionKind::kBackwardInput, rank, 0),
        MakeAction(ActionKind::kBackwardWeight, rank, 0),
        MakeAction(ActionKind::kForward, up, p),
        MakeAction(ActionKind::kBackwardInput, up, p - rank),
        MakeAction(ActionKind::kBackwardWeight, up, p - rank)};
  }
  return order;
}

Schedule GenerateZbV(const GeneratorOptions& options) {
  Schedule schedule = VPipeline("zb-v", options);
  for (int rank = 0; rank < options.ranks; ++rank) FillRank(schedule, rank);
  AppendUpdates(schedule);
  return schedule;
}

std::vector<Fact> FactsOfZbV(const GeneratorOptions& options) {
  const int64_t p = options.ranks;
  const int64_t m = options.microbatches;
  std::vector<Fact> facts;
  if (m >= 2 * p - 1) {
    facts = {{Quantity::kIdleOfMakespan, "(p − 1) / (6m + p − 1)", {{p - 1, 6 * m + p - 1}}},
             {Quantity::kInFlight, "2p", {2 * p}}};
    if (!options.norm && !options.barrier && !options.tied)
      facts.push_back({Quantity::kIdleOfSpan, "0", {0}});
  }
  AddFlushFacts(facts);
  return facts;
}

}  // namespace pipelag
