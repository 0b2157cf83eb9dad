#include "sim/times.h"

#include <fmt/format.h>

#include <algorithm>

namespace pipelag {

ActionTimes::ActionTimes(const Program& program, const Costs& costs,
                         const std::vector<Nanoseconds>& reduction) {
  const Schedule& schedule = program.schedule();
  if (costs.stages() != schedule.stages) {
    throw Error(fmt::format("the times are for {} stages, but the schedule has {}", costs.stages(),
                            schedule.stages));
  }
  const auto placed = static_cast<size_t>(schedule.placed_stages());
  for (auto& times : times_) times.assign(placed, 0);
  std::array<bool, kKinds> used{};
  for (const auto& body : schedule.body) {
    for (const Action& action : body) {
      if (action.kind <= ActionKind::kUpdate) used[static_cast<size_t>(action.kind)] = true;
    }
  }
  for (size_t kind = 0; kind < kKinds; ++kind) {
    if (!used[kind]) continue;
    for (size_t s = 0; s < placed; ++s) {
      times_[kind][s] =
          costs.Of(static_cast<ActionKind>(kind), schedule.SliceOf(static_cast<int>(s))).count();
    }
  }
  for (size_t s = 0; !costs.overlap.empty() && s < placed; ++s) {
    const auto slice = static_cast<size_t>(schedule.SliceOf(static_cast<int>(s)));
    overlap_.push_back(costs.overlap.at(slice).count());
  }
  const size_t groups = schedule.groups.size();
  if (!reduction.empty() && reduction.size() != 1 && reduction.size() != groups) {
    throw Error(
        fmt::format("{} reduction times are given for {} groups", reduction.size(), groups));
  }
  for (size_t g = 0; g < groups; ++g) {
    // A norm moves a few numbers and a barrier none; only gradients take the time given.
    const bool moves_gradients =
        schedule.groups[g].purpose == CollectiveGroup::Purpose::kReplicas ||
        schedule.groups[g].purpose == CollectiveGroup::Purpose::kWeights;
    int64_t time = 0;
    if (reduction.size() == groups) {
      time = reduction[g].count();
    } else if (!reduction.empty() && moves_gradients) {
      time = reduction[0].count();
    }
    reduction_.push_back(time);
  }
  occupancy_ = TransferTime(costs.activation_bytes, costs.p2p_bandwidth).count();
  latency_ = costs.p2p_latency.count();
  message_bytes_ = costs.activation_bytes;
}

Nanoseconds ActionTimes::BusyPerStep(const Program& program) const {
  int64_t busiest = 0;
  for (const auto& body : program.schedule().body) {
    int64_t busy = 0;
    for (size_t i = 0; i < body.size(); ++i) {
      if (body[i].overlaps_next) {
        busy += OfOverlap(body[i].stage, body[i + 1].kind, body[i + 1].stage);
        ++i;
      } else if (body[i].kind <= ActionKind::kUpdate) {
        busy += Of(body[i].kind, body[i].stage);
      }
    }
    busiest = std::max(busiest, busy);
  }
  return Nanoseconds{busiest};
}

}  // namespace pipelag
