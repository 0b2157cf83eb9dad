#include "runtime/rank_plan.h"

#include <algorithm>

#include "runtime/runnable.h"
#include "runtime/summation.h"

namespace pipelag {
namespace {

/// What is held between two actions of the rank's own: counted along its lane, most at once.
struct HeldAtOnce {
  HeldAtOnce(const Program& program, int rank)
      : kept(static_cast<size_t>(program.schedule().placed_stages())) {
    const Schedule& schedule = program.schedule();
    std::vector<int> kept_now(kept.size());
    int handed = 0;
    for (LaneWalk walk(program, rank); !walk.done(); walk.Advance()) {
      const RunAction& a = walk.action();
      if (!HasMicrobatch(a.kind)) continue;
      const auto s = static_cast<size_t>(a.stage);
      if (a.kind == ActionKind::kBackwardInput) kept[s] = std::max(kept[s], ++kept_now[s]);
      if (a.kind == ActionKind::kBackwardWeight) --kept_now[s];
      // An action's output must not be its input.
      if (HasOutput(schedule, a.kind, a.stage) && program.ProducedLane(a.kind, a.stage) < 0) {
        handovers = std::max(handovers, ++handed);
      }
      if (HasInput(schedule, a.kind, a.stage) && program.ConsumedLane(a.kind, a.stage) < 0) {
        --handed;
      }
    }
  }

  std::vector<int> kept;  // by placed stage
  int handovers = 0;
};

std::vector<ReductionPlan> ReductionsOf(const Schedule& schedule, int rank) {
  std::vector<ReductionPlan> reductions;
  for (size_t g = 0; g < schedule.groups.size(); ++g) {
    const CollectiveGroup& group = schedule.groups[g];
    if (!AddsGradients(group)) continue;
    const std::vector<int> ranks = RanksOf(schedule, group);
    const auto me = std::find(ranks.begin(), ranks.end(), rank);
    if (me == ranks.end() || ranks.size() == 1) continue;
    ReductionPlan& plan = reductions.emplace_back();
    plan.group = static_cast<int>(g);
    plan.member = static_cast<int>(me - ranks.begin());
    plan.members = static_cast<int>(ranks.size());
    for (const int stage : group.stages) {
      const bool own = schedule.placement[static_cast<size_t>(stage)] == rank;
      if (own) plan.stage = stage;
      plan.summands += own ? 0 : 1;
    }
  }
  return reductions;
}

}  // namespace

size_t ReductionPlan::ReceivedElements(size_t length) const {
  return static_cast<size_t>(summands) *
         PartOf(length, static_cast<size_t>(member), static_cast<size_t>(members)).length;
}

bool HasInput(const Schedule& schedule, ActionKind kind, int placed) {
  if (IsForward(kind)) return !schedule.IsFirst(placed);
  return YieldsInputGradient(kind) && !schedule.IsLast(placed);
}

bool HasOutput(const Schedule& schedule, ActionKind kind, int placed) {
  if (IsForward(kind)) return !schedule.IsLast(placed);
  return YieldsInputGradient(kind) && !schedule.IsFirst(placed);
}

RankPlan PlanRank(const Program& program, int rank, const std::vector<int>& slots,
                  int64_t first_step) {
  const Schedule& schedule = program.schedule();
  CheckRunnable(schedule);
  RankPlan plan{rank, {}, {}, ReductionsOf(schedule, rank)};
  const HeldAtOnce held(program, rank);
  for (int s = 0; s < schedule.placed_stages(); ++s) {
    if (schedule.placement[static_cast<size_t>(s)] != rank) continue;
    const StageVersions& versions = program.versions(s);
    StagePlan stage{.stage = s,
                    .slice = schedule.SliceOf(s),
                    .speaks = schedule.StreamOf(s) == 0,
                    .activation_slots = program.PeakInFlight(s),
                    .kept_slots = held.kept[static_cast<size_t>(s)],
                    .weight_buffers = versions.weight_versions,
                    .gradient_buffers = versions.gradient_buffers,
                    .gradient_delay = versions.gradient_delay};
    if (const CollectiveGroup* copies = WeightGroupOf(schedule, s)) {
      for (const int copy : copies->stages) {
        const int delay = program.versions(copy).gradient_delay;
        stage.same_delay = stage.same_delay && delay == versions.gradient_delay;
        stage.gradient_delay = std::max(stage.gradient_delay, delay);
      }
    }
    // As many as any copy needs: a checkpoint holds one history for all of them.
    stage.history = static_cast<int>(
        std::min<int64_t>(first_step, std::max(stage.gradient_delay, versions.backward_delay)));
    stage.weight_buffers = std::max(stage.weight_buffers, stage.history + 1);
    plan.stages.push_back(stage);
  }
  if (held.handovers > 0) plan.messages.push_back({kHandover, held.handovers});
  for (size_t lane = 0; lane < program.lanes().size(); ++lane) {
    const Lane& ends = program.lanes()[lane];
    // A sender holds as many messages as the receiver has room for, so that its copy never waits.
    if (ends.sender == rank || ends.receiver == rank) {
      plan.messages.push_back({static_cast<int>(lane), slots[lane]});
    }
  }
  return plan;
}

}  // namespace pipelag
