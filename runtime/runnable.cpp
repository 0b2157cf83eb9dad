#include "runtime/runnable.h"

#include <fmt/format.h>

#include <algorithm>

namespace pipelag {
namespace {

using Purpose = CollectiveGroup::Purpose;

/// Every copy of a slice, in one group and no other.
void CheckCopies(const Schedule& schedule) {
  if (schedule.streams == 1) return;
  for (int slice = 0; slice < schedule.stages; ++slice) {
    std::vector<int> copies;
    for (int stream = 0; stream < schedule.streams; ++stream) {
      copies.push_back(schedule.PlacedStage(stream, slice));
    }
    const auto exchanges = [&](const CollectiveGroup& group) {
      return group.purpose == Purpose::kWeights && group.stages == copies;
    };
    if (std::none_of(schedule.groups.begin(), schedule.groups.end(), exchanges)) {
      throw Error(
          fmt::format("{} holds stage {} {} times, but has no group of purpose 'weights' over its "
                      "copies, whose "
                      "weights would drift apart",
                      schedule.name, slice, schedule.streams));
    }
  }
}

void CheckGroups(const Schedule& schedule) {
  std::vector<int> exchanges(schedule.placement.size());
  for (const CollectiveGroup& group : schedule.groups) {
    if (group.purpose == Purpose::kReplicas) {
      throw Error(fmt::format("the runtime has no replicas whose gradients {} could reduce",
                              schedule.name));
    }
    if (group.purpose != Purpose::kWeights) continue;
    for (const int stage : group.stages) {
      const int slice = schedule.SliceOf(stage);
      if (slice != schedule.SliceOf(group.stages.front())) {
        throw Error(
            fmt::format("{} adds up the gradients of stages {} and {}, which are not copies",
                        schedule.name, schedule.SliceOf(group.stages.front()), slice));
      }
      if (++exchanges[static_cast<size_t>(stage)] > 1) {
        throw Error(fmt::format("{} adds up the gradients of stage {} more than once",
                                schedule.name, slice));
      }
    }
  }
}

/// All first and last stages, each once, or none.
void CheckShared(const Schedule& schedule) {
  if (!SharesTensor(schedule)) return;
  std::vector<int> exchanges(schedule.placement.size());
  for (const CollectiveGroup& group : schedule.groups) {
    if (group.purpose != Purpose::kShared) continue;
    for (const int stage : group.stages) ++exchanges[static_cast<size_t>(stage)];
  }
  for (int stage = 0; stage < schedule.placed_stages(); ++stage) {
    const int expected = schedule.IsFirst(stage) || schedule.IsLast(stage) ? 1 : 0;
    if (exchanges[static_cast<size_t>(stage)] == expected) continue;
    throw Error(fmt::format("{} exchanges the gradients of a shared tensor {} times on stage {}",
                            schedule.name, exchanges[static_cast<size_t>(stage)],
                            schedule.SliceOf(stage)));
  }
}

/// In the order of a rank, what is summed or taken of gradients stands behind every exchange that
/// completes them.
void CheckOrder(const Schedule& schedule, const std::vector<Action>& body, Purpose before,
                Purpose after, const char* what) {
  const auto reduces = [&](const Action& action, Purpose purpose) {
    return action.kind == ActionKind::kAllReduce &&
           schedule.groups[action.stage].purpose == purpose;
  };
  for (size_t i = 0; i < body.size(); ++i) {
    if (!reduces(body[i], after)) continue;
    for (size_t k = 0; k < body.size(); ++k) {
      if (!reduces(body[k], before)) continue;
      // Of one batch: that with the greater relative step stands in the earlier repetition.
      if (body[k].microbatch != body[i].microbatch ? body[k].microbatch > body[i].microbatch
                                                   : k < i) {
        continue;
      }
      throw Error(fmt::format("{} {}", schedule.name, what));
    }
  }
}

void CheckOrders(const Schedule& schedule) {
  for (const auto& body : schedule.body) {
    CheckOrder(schedule, body, Purpose::kWeights, Purpose::kNorm,
               "takes the norm of gradients before their copies are added");
    CheckOrder(schedule, body, Purpose::kShared, Purpose::kNorm,
               "takes the norm of gradients before those of a shared tensor are added");
    CheckOrder(schedule, body, Purpose::kWeights, Purpose::kShared,
               "exchanges the gradients of a shared tensor before their copies are added");
  }
}

}  // namespace

bool IsMember(const CollectiveGroup& group, int placed) {
  return std::binary_search(group.stages.begin(), group.stages.end(), placed);
}

bool SpeaksIn(const Schedule& schedule, const CollectiveGroup& group, int placed) {
  return std::none_of(group.stages.begin(), group.stages.end(), [&](int other) {
    return other < placed && schedule.SliceOf(other) == schedule.SliceOf(placed);
  });
}

bool AddsGradients(const CollectiveGroup& group) {
  return MovesGradients(group) || group.purpose == Purpose::kShared;
}

void CheckRunnable(const Schedule& schedule) {
  CheckGroups(schedule);
  CheckCopies(schedule);
  CheckShared(schedule);
  CheckOrders(schedule);
}

bool SharesTensor(const Schedule& schedule) {
  return std::any_of(schedule.groups.begin(), schedule.groups.end(),
                     [](const auto& group) { return group.purpose == Purpose::kShared; });
}

Program Unpaired(const Program& program) {
  Schedule schedule = program.schedule();
  for (auto& body : schedule.body) {
    for (Action& action : body) action.overlaps_next = false;
  }
  return Program(std::move(schedule), program.steps());
}

std::vector<int> RanksOf(const Schedule& schedule, const CollectiveGroup& group) {
  std::vector<int> ranks;
  for (const int stage : group.stages) {
    ranks.push_back(schedule.placement[static_cast<size_t>(stage)]);
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

const CollectiveGroup* WeightGroupOf(const Schedule& schedule, int placed) {
  for (const CollectiveGroup& group : schedule.groups) {
    if (group.purpose == Purpose::kWeights && IsMember(group, placed)) return &group;
  }
  return nullptr;
}

}  // namespace pipelag
