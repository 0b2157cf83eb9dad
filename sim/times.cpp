#include "sim/times.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace pipelag {
namespace {

__extension__ using Wide = __int128;

}  // namespace

ActionTimes::ActionTimes(const Program& program, const Costs& costs,
                         const std::vector<Nanoseconds>& reduction) {
  const Schedule& schedule = program.schedule();
  if (costs.stages() != schedule.stages) {
    throw Error(fmt::format("the times are for {} stages, but the schedule has {}", costs.stages(),
                            schedule.stages));
  }
  microbatches_ = schedule.microbatches;
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
  CheckSum(program);
}

void ActionTimes::Replace(ActionKind kind, const std::vector<std::vector<Nanoseconds>>& times,
                          const Program& program) {
  CHECK(kind <= ActionKind::kBackwardWeight);
  std::vector<int64_t> table;
  for (const std::vector<Nanoseconds>& of_stage : times) {
    for (const Nanoseconds time : of_stage) table.push_back(time.count());
  }
  const auto placed = static_cast<size_t>(program.schedule().placed_stages());
  const bool even = std::all_of(times.begin(), times.end(), [&](const auto& of_stage) {
    return of_stage.size() == static_cast<size_t>(microbatches_);
  });
  if (times.size() != placed || !even) {
    throw Error(
        fmt::format("times of {} per micro-batch must be given for {} micro-batches of each "
                    "of {} stages",
                    KindName(kind), microbatches_, placed));
  }
  by_microbatch_[static_cast<size_t>(kind)] = std::move(table);
  CheckSum(program);
}

/// No path through the run is longer than everything one after the other.
void ActionTimes::CheckSum(const Program& program) const {
  Wide step = 0;
  for (const auto& body : program.schedule().body) {
    for (const Action& action : body) {
      if (action.kind == ActionKind::kAllReduce) {
        step += OfReduction(action.stage);
        continue;
      }
      step += Of(action);
      if (program.ProducedLane(action.kind, action.stage) >= 0) {
        step += Wide{occupancy_} + latency_;
      }
    }
  }
  if (step * program.steps() > std::numeric_limits<int64_t>::max()) {
    throw Error("the run could take longer than 292 years: the times are too large");
  }
}

Nanoseconds ActionTimes::BusyPerStep(const Program& program) const {
  int64_t busiest = 0;
  for (const auto& body : program.schedule().body) {
    int64_t busy = 0;
    for (size_t i = 0; i < body.size(); ++i) {
      if (body[i].overlaps_next) {
        busy += OfOverlap(body[i], body[i + 1]);
        ++i;
      } else if (body[i].kind <= ActionKind::kUpdate) {
        busy += Of(body[i]);
      }
    }
    busiest = std::max(busiest, busy);
  }
  return Nanoseconds{busiest};
}

}  // namespace pipelag
