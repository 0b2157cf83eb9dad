#include "sim/times.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
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
  for (auto& counts : counts_) counts.assign(placed, 0);
  for (const auto& body : schedule.body) {
    for (const Action& action : body) {
      if (action.kind > ActionKind::kUpdate) continue;
      ++counts_[static_cast<size_t>(action.kind)][action.stage];
      any_overlap_ = any_overlap_ || action.overlaps_next;
    }
  }
  for (size_t kind = 0; kind < kKinds; ++kind) {
    for (size_t s = 0; s < placed; ++s) {
      if (counts_[kind][s] == 0) continue;
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
    int64_t time = 0;
    if (reduction.size() == groups) {
      time = reduction[g].count();
    } else if (!reduction.empty() && MovesGradients(schedule.groups[g])) {
      time = reduction[0].count();
    }
    reduction_.push_back(time);
  }
  message_ = {TransferTime(costs.activation_bytes, costs.p2p_bandwidth).count(),
              costs.p2p_latency.count()};
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

void ActionTimes::Scale(const std::vector<double>& rank_factors, const Program& program) {
  const Schedule& schedule = program.schedule();
  CHECK(rank_factors.size() == static_cast<size_t>(schedule.ranks));
  const auto scale = [&](std::vector<int64_t>& times, size_t per_stage) {
    for (size_t i = 0; i < times.size(); ++i) {
      const auto rank = static_cast<size_t>(schedule.placement[i / per_stage]);
      times[i] = Multiplied(times[i], rank_factors[rank]);
    }
  };
  for (auto& times : times_) scale(times, 1);
  for (auto& times : by_microbatch_) scale(times, static_cast<size_t>(microbatches_));
  scale(overlap_, 1);
  CheckSum(program);
}

void ActionTimes::ReplaceLinks(std::vector<LinkTime> lanes, const Program& program) {
  CHECK(lanes.size() == program.lanes().size());
  lanes_ = std::move(lanes);
  CheckSum(program);
}

void ActionTimes::ReplaceReductions(std::vector<int64_t> groups, const Program& program) {
  CHECK(groups.size() == reduction_.size());
  reduction_ = std::move(groups);
  CheckSum(program);
}

bool ActionTimes::messages_occupy() const {
  return lanes_.empty() ? message_.occupancy > 0
                        : std::any_of(lanes_.begin(), lanes_.end(),
                                      [](const LinkTime& link) { return link.occupancy > 0; });
}

/// No path through the run is longer than everything one after the other.
void ActionTimes::CheckSum(const Program& program) const {
  Wide step = 0;
  for (size_t kind = 0; kind < kKinds; ++kind) {
    const std::vector<int64_t>& own = by_microbatch_[kind];
    for (size_t s = 0; s < counts_[kind].size(); ++s) {
      const int lane = program.ProducedLane(static_cast<ActionKind>(kind), static_cast<int>(s));
      const LinkTime link = lane < 0 ? LinkTime{} : OfMessage(lane);
      step += (Wide{own.empty() ? times_[kind][s] : 0} + link.occupancy + link.latency) *
              counts_[kind][s];
    }
    for (const int64_t time : own) step += time;
  }
  for (size_t s = 0; any_overlap_ && s < overlap_.size(); ++s) {
    step += Wide{overlap_[s]} * counts_[static_cast<size_t>(ActionKind::kForward)][s];
  }
  for (const CollectiveGroup& group : program.schedule().groups) {
    const auto g = static_cast<size_t>(&group - program.schedule().groups.data());
    step += Wide{reduction_[g]} * static_cast<int64_t>(group.stages.size());
  }
  if (step * program.steps() > std::numeric_limits<int64_t>::max()) {
    throw Error("the run could take longer than 292 years: the times are too large");
  }
}

Nanoseconds ActionTimes::BusyPerStep(const Program& program) const {
  const Schedule& schedule = program.schedule();
  std::vector<int64_t> busy(schedule.body.size());
  const bool by_stage =
      !any_overlap_ && std::all_of(by_microbatch_.begin(), by_microbatch_.end(),
                                   [](const auto& times) { return times.empty(); });
  if (by_stage) {
    for (size_t s = 0; s < schedule.placement.size(); ++s) {
      int64_t& rank = busy[static_cast<size_t>(schedule.placement[s])];
      for (size_t kind = 0; kind < kKinds; ++kind) rank += counts_[kind][s] * times_[kind][s];
    }
    return Nanoseconds{*std::max_element(busy.begin(), busy.end())};
  }
  for (size_t rank = 0; rank < busy.size(); ++rank) {
    const auto& body = schedule.body[rank];
    for (size_t i = 0; i < body.size(); ++i) {
      if (body[i].overlaps_next) {
        busy[rank] += OfOverlap(body[i], body[i + 1]);
        ++i;
      } else if (body[i].kind <= ActionKind::kUpdate) {
        busy[rank] += Of(body[i]);
      }
    }
  }
  return Nanoseconds{*std::max_element(busy.begin(), busy.end())};
}

int64_t Multiplied(int64_t time, double factor) {
  if (factor == 1) return time;
  const double exact = static_cast<double>(time) * factor;
  if (!(exact < 9e18)) throw Error("the noise makes an action take longer than 292 years");
  return static_cast<int64_t>(exact + 0.5);
}

std::vector<LinkTime> LinksOfMessages(const Program& program, const std::vector<Bytes>& behind,
                                      const Costs& costs) {
  const Schedule& schedule = program.schedule();
  CHECK(behind.size() + 1 == static_cast<size_t>(schedule.stages));
  if (std::adjacent_find(behind.begin(), behind.end(), std::not_equal_to<>()) == behind.end()) {
    return {};
  }
  std::vector<LinkTime> lanes(program.lanes().size());
  for (int placed = 0; placed < schedule.placed_stages(); ++placed) {
    const auto carry = [&](int lane, int cut) {
      if (lane < 0) return;
      const Bytes bytes = behind[static_cast<size_t>(cut)];
      LinkTime& link = lanes[static_cast<size_t>(lane)];
      link.occupancy = std::max(link.occupancy, TransferTime(bytes, costs.p2p_bandwidth).count());
      link.latency = costs.p2p_latency.count();
    };
    const int slice = schedule.SliceOf(placed);
    if (!schedule.IsLast(placed)) carry(program.ForwardLane(placed), slice);
    if (!schedule.IsFirst(placed)) carry(program.BackwardLane(placed), slice - 1);
  }
  return lanes;
}

}  // namespace pipelag
