// Random schedules, legal whatever is drawn, and random times. Knows nothing of what is to hold.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "models/costs.h"
#include "models/random.h"
#include "models/schedule/schedule.h"

namespace pipelag {

/// Draws in the order they are asked for.
class Luck {
 public:
  Luck(uint64_t seed, uint64_t number) : seed_(seed), case_(number) {}
  int64_t Below(int64_t bound) {
    return static_cast<int64_t>(
        UniformBelow(RandomBits(seed_, case_, count_++), static_cast<uint64_t>(bound)));
  }
  int Between(int least, int most) { return least + static_cast<int>(Below(most - least + 1)); }
  bool Chance(int percent) { return Below(100) < percent; }

 private:
  uint64_t seed_;
  uint64_t case_;
  uint64_t count_ = 0;
};

inline Action Make(ActionKind kind, int stage, int microbatch) {
  return {microbatch, static_cast<uint16_t>(stage), kind, false};
}

/// One step with a flush in an order that a random topological sort of its actions gave; any rank
/// may hold any stages, any backward may be split, F and B that meet may overlap.
inline Schedule RandomFlush(Luck& luck) {
  Schedule s;
  s.name = "random";
  s.ranks = luck.Between(1, 5);
  s.stages = luck.Between(1, 6);
  s.streams = luck.Between(1, 2);
  s.microbatches = s.streams * luck.Between(1, 4);
  for (int i = 0; i < s.placed_stages(); ++i) s.placement.push_back(luck.Between(0, s.ranks - 1));
  s.body.resize(static_cast<size_t>(s.ranks));
  // State of (placed stage, micro-batch): 0 nothing, 1 F done, 2 gradient done, 3 all done.
  std::map<std::pair<int, int>, int> state;
  std::map<std::pair<int, int>, bool> split;
  for (int i = 0; i < s.microbatches; ++i) {
    for (int slice = 0; slice < s.stages; ++slice) {
      const int placed = s.PlacedStage(s.StreamOfMicrobatch(i), slice);
      state[{placed, i}] = 0;
      split[{placed, i}] = luck.Chance(40);
    }
  }
  Action last = Make(ActionKind::kUpdate, 0, 0);
  for (;;) {
    std::vector<Action> ready;
    for (const auto& [cell, at] : state) {
      const auto [placed, i] = cell;
      if (at == 0 && (s.IsFirst(placed) || state.at({placed - 1, i}) >= 1)) {
        ready.push_back(Make(ActionKind::kForward, placed, i));
      }
      if (at == 1 && (s.IsLast(placed) || state.at({placed + 1, i}) >= 2)) {
        ready.push_back(
            Make(split.at(cell) ? ActionKind::kBackwardInput : ActionKind::kBackward, placed, i));
      }
      if (at == 2) ready.push_back(Make(ActionKind::kBackwardWeight, placed, i));
    }
    if (ready.empty()) break;
    Action next = ready[static_cast<size_t>(luck.Below(static_cast<int64_t>(ready.size())))];
    auto& body = s.body[static_cast<size_t>(s.placement[next.stage])];
    // A pair waits for the inputs of both and yields late, so nothing may have come in between.
    if (next.microbatch != last.microbatch && IsForward(last.kind) &&
        YieldsInputGradient(next.kind) && s.placement[last.stage] == s.placement[next.stage] &&
        luck.Chance(60)) {
      body.back().overlaps_next = true;
    }
    last = next;
    body.push_back(next);
    int& at = state.at({next.stage, next.microbatch});
    at = next.kind == ActionKind::kBackward ? 3 : at + 1;
  }
  if (luck.Chance(40)) {
    std::vector<int> all(s.placement.size());
    std::iota(all.begin(), all.end(), 0);
    s.groups.push_back({CollectiveGroup::Purpose::kNorm, all});
    for (int rank = 0; rank < s.ranks; ++rank) {
      if (!s.body[static_cast<size_t>(rank)].empty()) {
        s.body[static_cast<size_t>(rank)].push_back(Make(ActionKind::kAllReduce, 0, 0));
      }
    }
  }
  for (int i = 0; i < s.placed_stages(); ++i) {
    s.body[static_cast<size_t>(s.placement[static_cast<size_t>(i)])].push_back(
        Make(ActionKind::kUpdate, i, 0));
  }
  return s;
}

inline Costs RandomCosts(Luck& luck, int stages, bool bandwidth) {
  Costs costs;
  const auto draw = [&](std::vector<Nanoseconds>& list, int64_t most) {
    for (int s = 0; s < stages; ++s) list.emplace_back(luck.Below(most));
  };
  draw(costs.forward, 1000);
  draw(costs.backward, 2000);
  draw(costs.backward_input, 1500);
  draw(costs.backward_weight, 1500);
  draw(costs.update, 300);
  if (luck.Chance(50)) draw(costs.overlap, 2500);
  costs.p2p_latency = Nanoseconds{luck.Below(2000)};
  if (bandwidth) {
    costs.activation_bytes = luck.Below(800);
    costs.p2p_bandwidth = Bandwidth{1'000'000'000};
  }
  return costs;
}

/// A body without a flush. Every action of a step of the endless order gets a moment, later than
/// those of what it depends on, and `period` later in every following step; the lanes are sorted by
/// it, so that the order is legal whatever the numbers are.
inline Schedule RandomEndless(Luck& luck) {
  Schedule s;
  s.name = "random";
  s.ranks = luck.Between(1, 4);
  s.stages = luck.Between(1, 5);
  s.microbatches = luck.Between(1, 4);
  s.policy = luck.Chance(50) ? WeightPolicy::kStashed : WeightPolicy::kLatest;
  for (int i = 0; i < s.stages; ++i) s.placement.push_back(luck.Between(0, s.ranks - 1));
  s.body.resize(static_cast<size_t>(s.ranks));
  const int period = luck.Between(4, 30);
  const int stride = luck.Between(1, 12);
  struct Moment {
    int64_t at;
    int sequence;
    Action action;
    auto Key() const { return std::pair(at, sequence); }
  };
  std::vector<std::vector<Moment>> lanes(static_cast<size_t>(s.ranks));
  int sequence = 0;
  const auto place = [&](int rank, ActionKind kind, int stage, int microbatch, int64_t moment) {
    const int64_t block = FloorDiv(moment, period);
    const int64_t number = microbatch - block * (HasMicrobatch(kind) ? s.microbatches : 1);
    lanes[static_cast<size_t>(rank)].push_back(
        {moment - block * period, sequence++, Make(kind, stage, static_cast<int>(number))});
  };
  std::vector<int64_t> last_gradient(static_cast<size_t>(s.stages));
  for (int i = 0; i < s.microbatches; ++i) {
    int64_t moment = luck.Below(period);
    const auto go_on = [&] { return moment += 1 + luck.Below(stride); };
    for (int stage = 0; stage < s.stages; ++stage) {
      place(s.placement[static_cast<size_t>(stage)], ActionKind::kForward, stage, i, go_on());
    }
    for (int stage = s.stages - 1; stage >= 0; --stage) {
      const int rank = s.placement[static_cast<size_t>(stage)];
      int64_t& last = last_gradient[static_cast<size_t>(stage)];
      if (luck.Chance(50)) {
        place(rank, ActionKind::kBackward, stage, i, go_on());
        last = std::max(last, moment);
      } else {
        place(rank, ActionKind::kBackwardInput, stage, i, go_on());
        const int64_t weight = moment + 1 + luck.Below(2 * period);
        place(rank, ActionKind::kBackwardWeight, stage, i, weight);
        last = std::max(last, weight);
      }
    }
  }
  const bool norm = luck.Chance(30);
  const int64_t all = *std::max_element(last_gradient.begin(), last_gradient.end()) + 1;
  if (norm) {
    std::vector<int> stages(s.placement.size());
    std::iota(stages.begin(), stages.end(), 0);
    s.groups.push_back({CollectiveGroup::Purpose::kNorm, stages});
    for (int rank = 0; rank < s.ranks; ++rank) {
      if (!lanes[static_cast<size_t>(rank)].empty()) {
        place(rank, ActionKind::kAllReduce, 0, 0, all);
      }
    }
  }
  for (int stage = 0; stage < s.stages; ++stage) {
    const int64_t behind = norm ? all : last_gradient[static_cast<size_t>(stage)];
    place(s.placement[static_cast<size_t>(stage)], ActionKind::kUpdate, stage, 0,
          behind + 1 + luck.Below(period));
  }
  for (int rank = 0; rank < s.ranks; ++rank) {
    auto& lane = lanes[static_cast<size_t>(rank)];
    std::sort(lane.begin(), lane.end(),
              [](const Moment& a, const Moment& b) { return a.Key() < b.Key(); });
    for (const Moment& m : lane) s.body[static_cast<size_t>(rank)].push_back(m.action);
  }
  return s;
}

}  // namespace pipelag
