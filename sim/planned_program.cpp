#include "sim/planned_program.h"

#include <algorithm>

namespace pipelag {
namespace {

Program LoweredForDefaultSteps(const Schedule& schedule) {
  const Program one_step(schedule, 1);
  return one_step.WithSteps(DefaultSteps(one_step.schedule()));
}

int64_t At(const std::vector<Nanoseconds>& times, int stage) {
  return times[static_cast<size_t>(stage)].count();
}

}  // namespace

PlannedProgram::PlannedProgram(const Schedule& schedule)
    : program_(LoweredForDefaultSteps(schedule)),
      held_(program_),
      work_(static_cast<size_t>(schedule.placed_stages())) {
  for (int placed = 0; placed < schedule.placed_stages(); ++placed) {
    gradient_delay_ = std::max(gradient_delay_, program_.versions(placed).gradient_delay);
  }
  for (const auto& body : schedule.body) {
    for (const Action& action : body) {
      if (action.kind > ActionKind::kBackwardWeight) continue;
      StageWork& work = work_[action.stage];
      overlaps_ = overlaps_ || action.overlaps_next;
      if (action.kind == ActionKind::kForward) ++work.forwards;
      if (action.kind == ActionKind::kBackward) ++work.backwards;
      if (action.kind == ActionKind::kBackwardInput) ++work.inputs;
      if (action.kind == ActionKind::kBackwardWeight) ++work.weights;
    }
  }
}

Nanoseconds PlannedProgram::LeastStepTime(const Costs& costs,
                                          const std::vector<Nanoseconds>& reductions) const {
  const Schedule& schedule = program_.schedule();
  const bool shortened = overlaps_ && !costs.overlap.empty();
  std::vector<int64_t> busy(static_cast<size_t>(schedule.ranks));
  for (int placed = 0; placed < schedule.placed_stages(); ++placed) {
    const StageWork& work = work_[static_cast<size_t>(placed)];
    const int slice = schedule.SliceOf(placed);
    int64_t& own = busy[static_cast<size_t>(schedule.placement[static_cast<size_t>(placed)])];
    own += At(costs.update, slice);
    if (shortened) {  // of a pair only the forward's stage says how long it takes
      own += work.forwards * std::min(At(costs.forward, slice), At(costs.overlap, slice));
      continue;
    }
    own += work.forwards * At(costs.forward, slice);
    if (work.backwards > 0) {
      own += work.backwards * costs.Of(ActionKind::kBackward, slice).count();
    }
    if (work.inputs > 0) own += work.inputs * At(costs.backward_input, slice);
    if (work.weights > 0) own += work.weights * At(costs.backward_weight, slice);
  }
  int64_t least = *std::max_element(busy.begin(), busy.end());
  if (schedule.flushes() && schedule.streams == 1 && !shortened) {
    least = std::max(least, LongestRound(costs, reductions));
  }
  return Nanoseconds{least};
}

int64_t PlannedProgram::LongestRound(const Costs& costs,
                                     const std::vector<Nanoseconds>& reductions) const {
  const Schedule& schedule = program_.schedule();
  const auto back = [&](int stage) {
    const StageWork& work = work_[static_cast<size_t>(stage)];
    const int64_t whole =
        work.backwards > 0 ? costs.Of(ActionKind::kBackward, stage).count() : INT64_MAX;
    return std::min(whole, work.inputs > 0 ? At(costs.backward_input, stage) : INT64_MAX);
  };
  const int64_t message =
      (TransferTime(costs.activation_bytes, costs.p2p_bandwidth) + costs.p2p_latency).count();
  // By rank: the ways to and from its first stage, and what lies between them.
  std::vector<int64_t> between(static_cast<size_t>(schedule.ranks));
  std::vector<int64_t> ways(between.size(), -1);
  int64_t way = 0;
  for (int stage = 0; stage < schedule.stages; ++stage) {
    const auto rank = static_cast<size_t>(schedule.placement[static_cast<size_t>(stage)]);
    const StageWork& work = work_[static_cast<size_t>(stage)];
    if (ways[rank] < 0) ways[rank] = way;
    between[rank] += work.forwards * At(costs.forward, stage);
    if (work.backwards > 0) {
      between[rank] += work.backwards * costs.Of(ActionKind::kBackward, stage).count();
    }
    if (work.inputs > 0) between[rank] += work.inputs * At(costs.backward_input, stage);
    way += At(costs.forward, stage) + back(stage);
    const bool leaves =
        stage + 1 < schedule.stages && schedule.placement[static_cast<size_t>(stage) + 1] !=
                                           schedule.placement[static_cast<size_t>(stage)];
    if (leaves) way += 2 * message;
  }
  int64_t longest = 0;
  for (size_t rank = 0; rank < between.size(); ++rank) {
    longest = std::max(longest, ways[rank] + between[rank]);
  }
  // Behind the last gradient of the first stage: its weights' part, reduction, and the updates.
  if (work_[0].backwards == 0) longest += At(costs.backward_weight, 0);
  for (size_t group = 0; group < schedule.groups.size() && !reductions.empty(); ++group) {
    const std::vector<int>& stages = schedule.groups[group].stages;
    if (std::find(stages.begin(), stages.end(), 0) == stages.end()) continue;
    longest += reductions[group].count();
    break;
  }
  for (int stage = 0; stage < schedule.stages; ++stage) {
    if (schedule.placement[static_cast<size_t>(stage)] == schedule.placement[0]) {
      longest += At(costs.update, stage);
    }
  }
  return longest;
}

}  // namespace pipelag
