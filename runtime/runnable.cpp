#include "runtime/runnable.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "models/schedule/text.h"

namespace pipelag {
namespace {

using Purpose = CollectiveGroup::Purpose;

[[noreturn]] void Refuse(const Schedule& schedule, std::string why, int rank = -1,
                         size_t position = 0) {
  const int place = rank < 0 ? -1 : static_cast<int>(position);
  throw ScheduleError(schedule, {{std::move(why), rank, place}});
}

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
      Refuse(
          schedule,
          fmt::format("stage {} is there {} times, but no group of purpose 'weights' is over its "
                      "copies, whose weights would drift apart",
                      slice, schedule.streams));
    }
  }
}

void CheckGroups(const Schedule& schedule) {
  std::vector<int> exchanges(schedule.placement.size());
  for (const CollectiveGroup& group : schedule.groups) {
    if (group.purpose == Purpose::kReplicas) {
      Refuse(schedule, fmt::format("the AR of the gradients of stage {} is over replicas, of which "
                                   "there is one (--replicas)",
                                   schedule.SliceOf(group.stages.front())));
    }
    if (group.purpose != Purpose::kWeights) continue;
    for (const int stage : group.stages) {
      const int slice = schedule.SliceOf(stage);
      if (slice != schedule.SliceOf(group.stages.front())) {
        Refuse(schedule,
               fmt::format("the gradients of stages {} and {} are added up, which are not "
                           "copies",
                           schedule.SliceOf(group.stages.front()), slice));
      }
      if (++exchanges[static_cast<size_t>(stage)] > 1) {
        Refuse(schedule,
               fmt::format("the gradients of stage {} are added up more than once", slice));
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
    Refuse(schedule,
           fmt::format("the gradients of a shared tensor are exchanged {} times on stage {}",
                       exchanges[static_cast<size_t>(stage)], schedule.SliceOf(stage)));
  }
}

/// In the order of a rank, what is summed or taken of gradients stands behind every exchange that
/// completes those of the same stage.
void CheckOrder(const Schedule& schedule, int rank, Purpose before, Purpose after,
                const char* what) {
  const std::vector<Action>& body = schedule.body[static_cast<size_t>(rank)];
  const auto reduces = [&](const Action& action, Purpose purpose) {
    return action.kind == ActionKind::kAllReduce &&
           schedule.groups[action.stage].purpose == purpose;
  };
  const auto meet = [&](const Action& one, const Action& other) {
    const std::vector<int>& stages = schedule.groups[one.stage].stages;
    return std::any_of(stages.begin(), stages.end(), [&](int stage) {
      return schedule.placement[static_cast<size_t>(stage)] == rank &&
             IsMember(schedule.groups[other.stage], stage);
    });
  };
  for (size_t i = 0; i < body.size(); ++i) {
    if (!reduces(body[i], after)) continue;
    for (size_t k = 0; k < body.size(); ++k) {
      if (!reduces(body[k], before) || !meet(body[i], body[k])) continue;
      // Of one batch: that with the greater relative step stands in the earlier repetition.
      if (body[k].microbatch != body[i].microbatch ? body[k].microbatch > body[i].microbatch
                                                   : k < i) {
        continue;
      }
      Refuse(schedule, what, rank, i);
    }
  }
}

/// A rank posts an AR where it stands in its lane, so the gradients of its stages must be there.
void CheckGradientsFirst(const Schedule& schedule, int rank) {
  const std::vector<Action>& body = schedule.body[static_cast<size_t>(rank)];
  // As seen from batch 0: by repetition of the body, then by position.
  const auto place = [&](size_t position) {
    return std::pair(-schedule.ShiftOf(body[position]), position);
  };
  for (size_t i = 0; i < body.size(); ++i) {
    if (body[i].kind != ActionKind::kAllReduce) continue;
    const CollectiveGroup& group = schedule.groups[body[i].stage];
    if (group.purpose == Purpose::kBarrier) continue;
    for (size_t k = 0; k < body.size(); ++k) {
      if (!HasMicrobatch(body[k].kind) || !YieldsWeightGradient(body[k].kind) ||
          !IsMember(group, body[k].stage) || place(k) < place(i)) {
        continue;
      }
      Refuse(schedule,
             fmt::format("{} stands before {}, whose gradient it needs",
                         ActionText(schedule, body[i]), ActionText(schedule, body[k])),
             rank, i);
    }
  }
}

void CheckOrders(const Schedule& schedule) {
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    CheckGradientsFirst(schedule, rank);
    CheckOrder(schedule, rank, Purpose::kWeights, Purpose::kNorm,
               "the norm of gradients is taken before their copies are added");
    CheckOrder(schedule, rank, Purpose::kShared, Purpose::kNorm,
               "the norm of gradients is taken before those of a shared tensor are added");
    CheckOrder(schedule, rank, Purpose::kWeights, Purpose::kShared,
               "the gradients of a shared tensor are exchanged before their copies are added");
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
