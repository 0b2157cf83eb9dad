#include "models/schedule/replicate.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace pipelag {
namespace {

using Purpose = CollectiveGroup::Purpose;

class Replication {
 public:
  Replication(const Schedule& one, int replicas)
      : one_(one), replicas_(replicas), offset_(one.placed_stages()) {}

  Schedule Make() {
    Schedule all = one_;
    all.replicas = replicas_;
    all.ranks *= replicas_;
    all.streams *= replicas_;
    all.microbatches *= replicas_;
    all.placement.clear();
    all.body.clear();
    all.given_order.clear();
    for (int replica = 0; replica < replicas_; ++replica) {
      for (const int rank : one_.placement) all.placement.push_back(replica * one_.ranks + rank);
    }
    all.groups = Groups();
    for (int replica = 0; replica < replicas_; ++replica) {
      for (const auto& body : one_.body) all.body.push_back(Of(replica, body));
      for (const auto& order : one_.given_order) all.given_order.push_back(Of(replica, order));
    }
    return all;
  }

 private:
  static bool SpansReplicas(const CollectiveGroup& group) { return MovesGradients(group); }

  std::vector<CollectiveGroup> Groups() {
    std::vector<CollectiveGroup> groups;
    for (const CollectiveGroup& group : one_.groups) {
      first_of_group_.push_back(static_cast<int>(groups.size()));
      for (int replica = 0; replica < replicas_; ++replica) {
        if (replica == 0 || !SpansReplicas(group)) {
          groups.push_back({SpansReplicas(group) ? Purpose::kWeights : group.purpose, {}});
        }
        for (const int stage : group.stages) {
          groups.back().stages.push_back(replica * offset_ + stage);
        }
      }
    }
    return groups;
  }

  std::vector<Action> Of(int replica, std::vector<Action> actions) const {
    for (Action& action : actions) {
      if (HasMicrobatch(action.kind)) {
        const int64_t step = one_.ShiftOf(action) * replicas_;
        const int64_t number = (step + replica) * one_.microbatches + one_.WithinStep(action);
        if (number != static_cast<int32_t>(number)) {
          throw ScheduleError(
              one_, {{fmt::format("{} times {} micro-batches are more than can be numbered",
                                  replicas_, one_.microbatches)}});
        }
        action.microbatch = static_cast<int32_t>(number);
      }
      const int stage = action.kind == ActionKind::kAllReduce ? GroupOf(replica, action.stage)
                                                              : replica * offset_ + action.stage;
      action.stage = static_cast<uint16_t>(stage);
    }
    return actions;
  }

  int GroupOf(int replica, int group) const {
    const auto g = static_cast<size_t>(group);
    return first_of_group_[g] + (SpansReplicas(one_.groups[g]) ? 0 : replica);
  }

  const Schedule& one_;
  int replicas_;
  int offset_;                       // placed stages of a replica
  std::vector<int> first_of_group_;  // by group of one replica
};

void CheckReplicable(const Schedule& schedule, int replicas) {
  if (replicas < 1) throw Error(fmt::format("--replicas must be at least 1, not {}", replicas));
  CHECK(schedule.replicas == 1);
  constexpr int64_t kMost = std::numeric_limits<uint16_t>::max();
  const int64_t placed = int64_t{replicas} * schedule.placed_stages();
  const int64_t groups = int64_t{replicas} * static_cast<int64_t>(schedule.groups.size());
  if (std::max(placed, groups) > kMost) {
    throw ScheduleError(
        schedule,
        {{fmt::format("{} replicas of {} stages are more than the {} that a schedule can hold",
                      replicas, schedule.placed_stages(), kMost)}});
  }
  for (int stage = 0; stage < schedule.placed_stages(); ++stage) {
    const auto reduces = [&](const CollectiveGroup& group) {
      return MovesGradients(group) &&
             std::find(group.stages.begin(), group.stages.end(), stage) != group.stages.end();
    };
    if (std::any_of(schedule.groups.begin(), schedule.groups.end(), reduces)) continue;
    throw ScheduleError(
        schedule,
        {{fmt::format("there is no AR of the gradients of stage {}, whose {} replicas would "
                      "drift apart",
                      schedule.SliceOf(stage), replicas)}});
  }
}

}  // namespace

Schedule Replicate(const Schedule& schedule, int replicas) {
  if (replicas == 1) return schedule;
  CheckReplicable(schedule, replicas);
  return Replication(schedule, replicas).Make();
}

std::string RankName(const Schedule& schedule, int rank) {
  if (schedule.replicas == 1) return fmt::format("rank {}", rank);
  return fmt::format("rank {} (replica {})", rank, schedule.ReplicaOf(rank));
}

}  // namespace pipelag
