#include "models/schedule/plain_order.h"

#include <algorithm>
#include <limits>

namespace pipelag {
namespace {

/// How far a stage has come, as seen from the next action of its rank's body.
struct Progress {
  int32_t forwards = 0;
  int32_t gradients = 0;  ///< B or I
  int32_t freed = 0;      ///< B or W
  int32_t most_held = 0;
  int32_t most_open = 0;
  bool updated = false;
};

/// Takes one action; false if it is not the next of its kind.
bool Take(const Action& action, int32_t microbatches, Progress& stage) {
  const int32_t i = action.microbatch;
  switch (action.kind) {
    case ActionKind::kForward:
      if (i != stage.forwards || i >= microbatches) return false;
      ++stage.forwards;
      stage.most_held = std::max(stage.most_held, stage.forwards - stage.freed);
      stage.most_open = std::max(stage.most_open, stage.forwards - stage.gradients);
      return true;
    case ActionKind::kBackward:
      if (i != stage.gradients || i != stage.freed || i >= stage.forwards) return false;
      ++stage.gradients;
      ++stage.freed;
      return true;
    case ActionKind::kBackwardInput:
      if (i != stage.gradients || i >= stage.forwards) return false;
      ++stage.gradients;
      return true;
    case ActionKind::kBackwardWeight:
      if (i != stage.freed || i >= stage.gradients) return false;
      ++stage.freed;
      return true;
    case ActionKind::kUpdate:
      if (i != 0 || stage.freed != microbatches || stage.updated) return false;
      stage.updated = true;
      return true;
    case ActionKind::kAllReduce:
    case ActionKind::kSendForward:
    case ActionKind::kReceiveForward:
    case ActionKind::kSendBackward:
    case ActionKind::kReceiveBackward:
      return false;
  }
  return false;
}

}  // namespace

std::optional<PlainOrder> FindPlainOrder(const Schedule& schedule) {
  if (!schedule.flushes() || schedule.streams > 1 || !schedule.groups.empty()) return std::nullopt;
  std::vector<Progress> stages(schedule.placement.size());
  PlainOrder order;
  order.updates.resize(stages.size());
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    int32_t held = 0;
    int32_t most_held = 0;
    const auto& body = schedule.body[static_cast<size_t>(rank)];
    for (size_t i = 0; i < body.size(); ++i) {
      const Action& action = body[i];
      const size_t s = action.stage;
      if (s >= stages.size() || schedule.placement[s] != rank || action.overlaps_next ||
          !Take(action, schedule.microbatches, stages[s])) {
        return std::nullopt;
      }
      if (IsForward(action.kind)) {
        most_held = std::max(most_held, ++held);
      } else if (YieldsWeightGradient(action.kind)) {
        --held;
      } else if (action.kind == ActionKind::kUpdate) {
        order.updates[s] = {rank, static_cast<int>(i), 0};
      }
    }
    order.peak_of_rank.push_back(most_held);
  }
  for (const Progress& stage : stages) {
    if (!stage.updated) return std::nullopt;
    order.peak_of_stage.push_back(stage.most_held);
    order.most_open = std::max(order.most_open, stage.most_open);
  }
  return order;
}

bool PlainOrderEnds(const Schedule& schedule) {
  const size_t stages = schedule.placement.size();
  // How many F each stage has done, from entry 1 on, and how many gradients each has passed on:
  // what has no stage before or behind it never waits.
  constexpr int32_t kAll = std::numeric_limits<int32_t>::max();
  std::vector<int32_t> forwards(stages + 1, 0);
  std::vector<int32_t> gradients(stages + 1, 0);
  forwards.front() = gradients.back() = kAll;
  std::vector<size_t> position(schedule.body.size());
  std::vector<uint8_t> queued(schedule.body.size(), 1);
  std::vector<int> queue;
  for (int rank = schedule.ranks - 1; rank >= 0; --rank) queue.push_back(rank);
  const auto wake = [&](size_t stage) {
    const auto rank = static_cast<size_t>(schedule.placement[stage]);
    if (queued[rank]) return;
    queued[rank] = 1;
    queue.push_back(static_cast<int>(rank));
  };
  while (!queue.empty()) {
    const auto rank = static_cast<size_t>(queue.back());
    queue.pop_back();
    const auto& body = schedule.body[rank];
    size_t& at = position[rank];
    // Marked as queued while it goes on: what it does for itself needs no second visit.
    for (; at < body.size(); ++at) {
      const Action& action = body[at];
      const size_t s = action.stage;
      if (IsForward(action.kind)) {
        if (forwards[s] <= action.microbatch) break;
        forwards[s + 1] = action.microbatch + 1;
        if (s + 1 < stages) wake(s + 1);
      } else if (YieldsInputGradient(action.kind)) {
        if (gradients[s + 1] <= action.microbatch) break;
        gradients[s] = action.microbatch + 1;
        if (s > 0) wake(s - 1);
      }
    }
    queued[rank] = 0;
  }
  for (size_t rank = 0; rank < position.size(); ++rank) {
    if (position[rank] < schedule.body[rank].size()) return false;
  }
  return true;
}

}  // namespace pipelag
