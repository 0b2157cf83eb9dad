// Plays a program by the law of execution in abstract integer ticks: who may start when, and what
// it is held up by. The simulator plays it in nanoseconds, the validator with unit costs.
// Uncontended: every lane has its own wire. In-order relaxation, no event queue: with static lane
// orders the start of an action is the maximum over its prerequisites, so one visit per action is
// enough.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "models/schedule/program.h"

namespace pipelag {

/// What a message takes on its lane.
struct LinkTime {
  int64_t occupancy = 0;
  int64_t latency = 0;
  bool operator==(const LinkTime&) const = default;
};

/// What messages take, and how many receive slots each lane has (0: as many as never delay).
struct PlayLinks {
  LinkTime all;
  std::vector<LinkTime> lanes = {};  ///< of each lane, in place of `all`
  int receive_slots = 0;
};

/// Everything that the rest of a run depends on, between two repetitions of the body: what there
/// is, spoken of relative to the repetition, and when. Of two states with the same things at times
/// that differ by a constant, all that follows differs by it.
struct PlayState {
  std::vector<int64_t> things;
  std::vector<int64_t> times;
};

/// Where a rank stood when nothing could go on.
struct Blocked {
  int rank = 0;
  RunAction action;
  /// What its reduce lane stood at, as (group, step): reached on the compute lane but not started.
  std::optional<std::pair<int, int64_t>> reduction = std::nullopt;
};

/// Everything takes as long as everything else: for `Costs`.
struct UnitTimes {
  int64_t Of(const RunAction&) const { return 1; }
  int64_t OfOverlap(const RunAction&, const RunAction&) const { return 1; }
  int64_t OfReduction(int) const { return 1; }
};

/// `Costs` answers the duration of an action:  int64_t Of(const RunAction&) const  (of an OVERLAP:
/// OfOverlap(forward, backward)), int64_t OfReduction(group).  `Observer` is told everything, in
/// lane order per lane:  OnCompute(rank, action, ready, start, end, overlapped), where `ready` is
/// when the lane became free;  OnTransfer(lane, action, ready, start, sent, delivered);
/// OnReduce(rank, group, step, start, end), once per member rank.
template <class Costs, class Observer>
class Play {
 public:
  Play(const Program& program, const Costs& costs, const PlayLinks& links, Observer& observer);
  Play(const Play&) = default;

  /// Runs to the end (then empty) or until nothing can go on.
  std::vector<Blocked> Run();

  /// The same, but no further than to the start of repetition `block` of the body on any rank; a
  /// later call goes on from there. False if some rank could not go so far, because it waits for
  /// what another does later on.
  bool RunUntil(int64_t block);

  /// After RunUntil(block) was true. Defined in play_state.h, as Skip is.
  PlayState StateAt(int64_t block) const;
  /// Goes on `blocks` repetitions later, with the same things; each time is `later` by its entry.
  void Skip(int64_t block, int64_t blocks, const std::vector<int64_t>& later);
  /// As another would go on, telling another observer.
  Play(const Play& other, Observer& observer) : Play(other) { observer_ = &observer; }

  /// When the lane has sent its last message so far.
  int64_t LaneEnd(int lane) const { return lanes_[static_cast<size_t>(lane)].free; }

 private:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::min();

  struct Message {
    int64_t ready;
    RunAction action;
  };
  struct LaneState {
    LinkTime takes;
    int64_t free = 0;
    int64_t sent = 0;
    int64_t released = 0;
    std::vector<int64_t> releases;  // ring over the slots: when the k-th consumption ended
    std::vector<Message> pending;   // produced, not yet under way for want of a slot
    size_t next_pending = 0;
  };
  struct RankState {
    LaneWalk walk;
    int64_t free = 0;
    int64_t reduce_free = 0;
    bool queued = false;
    std::vector<std::pair<int, int64_t>> reductions;  // (group, step) reached, in lane order
    size_t next_reduction = 0;
  };
  /// What every action of a placed stage needs to know, side by side.
  struct StageRoute {
    bool first = false;
    bool last = false;
    int forward_lane = -1;
    int backward_lane = -1;
    int forward_rank = -1;  // who waits for the result of an F
    int backward_rank = -1;
  };
  struct Reduction {
    int64_t remaining = 0;
    int64_t ready = 0;
    int64_t end = kNever;
  };

  void Drain();
  template <class Self, class Visit>
  static void VisitState(Self& self, int64_t block, Visit& visit);

  bool Step(int rank);
  [[gnu::noinline]] bool StepOverlap(int rank, int64_t ready);
  // The way of every single action, which a compiler left to itself cuts into calls.
  [[gnu::always_inline]] bool InputReady(const RunAction& action, int64_t& ready) const;
  [[gnu::always_inline]] void Finish(const RunAction& action, int64_t end);
  [[gnu::noinline]] void FinishForGroups(const RunAction& action, int64_t end);
  [[gnu::noinline]] void Consume(int lane, int64_t end);
  [[gnu::always_inline]] void Produce(int lane, const RunAction& action, int64_t end);
  [[gnu::noinline]] void Pump(int lane);
  [[gnu::always_inline]] void Send(int lane, const RunAction& action, int64_t ready,
                                   int64_t not_before);
  [[gnu::always_inline]] void Deliver(const RunAction& producer, int64_t at);
  void CountGradient(const RunAction& action, int64_t end);
  void PumpReductions(int rank);
  [[gnu::always_inline]] void Wake(int rank);

  size_t Slot(int stage, int64_t microbatch) const {
    return static_cast<size_t>(stage) * window_ + (static_cast<size_t>(microbatch) & (window_ - 1));
  }
  size_t ReductionSlot(int group, int64_t step) const {
    return static_cast<size_t>(group) * step_window_ +
           (static_cast<size_t>(step) & (step_window_ - 1));
  }
  Reduction& At(int group, int64_t step) { return reductions_[ReductionSlot(group, step)]; }
  int64_t GradientsPerStep(const CollectiveGroup& group) const {
    return static_cast<int64_t>(group.stages.size()) * schedule_.microbatches_per_stream();
  }

  const Program& program_;
  const Schedule& schedule_;
  const Costs& costs_;
  int receive_slots_;
  Observer* observer_;
  size_t window_;
  size_t step_window_;
  std::vector<int64_t> forward_arrival_;   // [stage][micro-batch]: input of F
  std::vector<int64_t> backward_arrival_;  // input of B or I
  std::vector<StageRoute> routes_;
  std::vector<RankState> ranks_;
  std::vector<LaneState> lanes_;
  std::vector<Reduction> reductions_;
  std::vector<std::vector<int>> groups_of_;  // per placed stage
  std::vector<int> queue_;
};

template <class Costs, class Observer>
Play<Costs, Observer>::Play(const Program& program, const Costs& costs, const PlayLinks& links,
                            Observer& observer)
    : program_(program),
      schedule_(program.schedule()),
      costs_(costs),
      receive_slots_(links.receive_slots),
      observer_(&observer),
      window_(static_cast<size_t>(program.window())),
      step_window_(static_cast<size_t>(program.step_window())),
      lanes_(program.lanes().size()),
      groups_of_(static_cast<size_t>(schedule_.placed_stages())) {
  const size_t cells = static_cast<size_t>(schedule_.placed_stages()) * window_;
  for (int s = 0; s < schedule_.placed_stages(); ++s) {
    const auto rank_of = [&](int stage) { return schedule_.placement[static_cast<size_t>(stage)]; };
    StageRoute route{schedule_.IsFirst(s), schedule_.IsLast(s), program.ForwardLane(s),
                     program.BackwardLane(s)};
    if (!route.last) route.forward_rank = rank_of(s + 1);
    if (!route.first) route.backward_rank = rank_of(s - 1);
    routes_.push_back(route);
  }
  forward_arrival_.assign(cells, kNever);
  backward_arrival_.assign(cells, kNever);
  ranks_.reserve(static_cast<size_t>(schedule_.ranks));
  for (int rank = 0; rank < schedule_.ranks; ++rank) {
    ranks_.push_back({.walk = LaneWalk(program, rank), .reductions = {}});
  }
  for (size_t lane = 0; lane < lanes_.size(); ++lane) {
    lanes_[lane].takes = links.lanes.empty() ? links.all : links.lanes[lane];
    lanes_[lane].releases.resize(static_cast<size_t>(links.receive_slots));
  }
  reductions_.resize(schedule_.groups.size() * step_window_);
  for (size_t g = 0; g < schedule_.groups.size(); ++g) {
    for (const int stage : schedule_.groups[g].stages) {
      groups_of_[static_cast<size_t>(stage)].push_back(static_cast<int>(g));
    }
    for (size_t t = 0; t < step_window_; ++t) {
      At(static_cast<int>(g), static_cast<int64_t>(t)).remaining =
          GradientsPerStep(schedule_.groups[g]);
    }
  }
}

template <class Costs, class Observer>
void Play<Costs, Observer>::Drain() {
  while (!queue_.empty()) {
    const int rank = queue_.back();
    queue_.pop_back();
    ranks_[static_cast<size_t>(rank)].queued = false;
    while (Step(rank)) {
    }
  }
}

template <class Costs, class Observer>
std::vector<Blocked> Play<Costs, Observer>::Run() {
  for (int rank = schedule_.ranks - 1; rank >= 0; --rank) {
    ranks_[static_cast<size_t>(rank)].walk.StopBefore(std::numeric_limits<int64_t>::max());
    Wake(rank);
  }
  Drain();
  std::vector<Blocked> blocked;
  for (int rank = 0; rank < schedule_.ranks; ++rank) {
    const RankState& state = ranks_[static_cast<size_t>(rank)];
    if (state.walk.done()) continue;
    blocked.push_back({rank, state.walk.action()});
    if (state.next_reduction < state.reductions.size()) {
      blocked.back().reduction = state.reductions[state.next_reduction];
    }
  }
  return blocked;
}

template <class Costs, class Observer>
bool Play<Costs, Observer>::RunUntil(int64_t block) {
  for (int rank = schedule_.ranks - 1; rank >= 0; --rank) {
    ranks_[static_cast<size_t>(rank)].walk.StopBefore(block);
    Wake(rank);
  }
  Drain();
  return std::all_of(ranks_.begin(), ranks_.end(),
                     [](const RankState& rank) { return rank.walk.done(); });
}

/// One action of the rank's compute list, if its prerequisites are known. False: blocked, or done.
template <class Costs, class Observer>
bool Play<Costs, Observer>::Step(int rank) {
  RankState& state = ranks_[static_cast<size_t>(rank)];
  if (state.walk.done()) return false;
  const RunAction& action = state.walk.action();
  if (action.kind == ActionKind::kAllReduce) {
    state.reductions.emplace_back(action.stage, action.step);
    state.walk.Advance();
    PumpReductions(rank);
    return true;
  }
  int64_t ready = state.free;
  if (!InputReady(action, ready)) return false;
  if (action.overlaps_next) return StepOverlap(rank, ready);
  const int64_t end = ready + costs_.Of(action);
  observer_->OnCompute(rank, action, state.free, ready, end, false);
  state.free = end;
  Finish(action, end);
  state.walk.Advance();
  return true;
}

/// Both halves start together, so the whole waits for both inputs. The F half alone must not hold
/// the lane while B's input is missing: nothing has been done yet, the walk is put back.
template <class Costs, class Observer>
bool Play<Costs, Observer>::StepOverlap(int rank, int64_t ready) {
  RankState& state = ranks_[static_cast<size_t>(rank)];
  const LaneWalk before = state.walk;
  const RunAction& forward = before.action();
  state.walk.Advance();
  const RunAction& backward = state.walk.action();
  if (!InputReady(backward, ready)) {
    state.walk = before;
    return false;
  }
  const int64_t end = ready + costs_.OfOverlap(forward, backward);
  observer_->OnCompute(rank, forward, state.free, ready, end, true);
  observer_->OnCompute(rank, backward, state.free, ready, end, true);
  state.free = end;
  Finish(forward, end);
  Finish(backward, end);
  state.walk.Advance();
  return true;
}

/// Raises `ready` to the time at which the action's data is there; false if that is not known yet.
template <class Costs, class Observer>
inline bool Play<Costs, Observer>::InputReady(const RunAction& action, int64_t& ready) const {
  int64_t at = kNever;
  switch (action.kind) {
    case ActionKind::kForward:
      if (routes_[static_cast<size_t>(action.stage)].first) return true;
      at = forward_arrival_[Slot(action.stage, action.microbatch)];
      break;
    case ActionKind::kBackward:
    case ActionKind::kBackwardInput:
      // Of the last stage: its own F stands before it in the lane.
      if (routes_[static_cast<size_t>(action.stage)].last) return true;
      at = backward_arrival_[Slot(action.stage, action.microbatch)];
      break;
    case ActionKind::kUpdate:
      for (const int group : groups_of_[static_cast<size_t>(action.stage)]) {
        const Reduction& reduction = reductions_[ReductionSlot(group, action.step)];
        if (reduction.end == kNever) return false;
        ready = std::max(ready, reduction.end);
      }
      return true;
    case ActionKind::kBackwardWeight:
    case ActionKind::kAllReduce:
    case ActionKind::kSendForward:
    case ActionKind::kReceiveForward:
    case ActionKind::kSendBackward:
    case ActionKind::kReceiveBackward:
      return true;
  }
  if (at == kNever) return false;
  ready = std::max(ready, at);
  return true;
}

template <class Costs, class Observer>
inline void Play<Costs, Observer>::Finish(const RunAction& action, int64_t end) {
  const StageRoute& route = routes_[static_cast<size_t>(action.stage)];
  if (IsForward(action.kind)) {
    if (!route.first) forward_arrival_[Slot(action.stage, action.microbatch)] = kNever;
    if (!route.last) Produce(route.forward_lane, action, end);
  } else if (YieldsInputGradient(action.kind)) {
    if (!route.last) backward_arrival_[Slot(action.stage, action.microbatch)] = kNever;
    if (!route.first) Produce(route.backward_lane, action, end);
  }
  if (receive_slots_ > 0) {
    const int lane = program_.ConsumedLane(action.kind, action.stage);
    if (lane >= 0) Consume(lane, end);
  }
  if (!schedule_.groups.empty()) FinishForGroups(action, end);
}

template <class Costs, class Observer>
void Play<Costs, Observer>::FinishForGroups(const RunAction& action, int64_t end) {
  if (YieldsWeightGradient(action.kind)) CountGradient(action, end);
  if (action.kind != ActionKind::kUpdate) return;
  for (const int group : groups_of_[static_cast<size_t>(action.stage)]) {
    // The entry's last reader frees it for a later step.
    Reduction& reduction = At(group, action.step);
    const auto& stages = schedule_.groups[static_cast<size_t>(group)].stages;
    if (++reduction.remaining == static_cast<int64_t>(stages.size())) {
      reduction = {GradientsPerStep(schedule_.groups[static_cast<size_t>(group)]), 0, kNever};
    }
  }
}

template <class Costs, class Observer>
void Play<Costs, Observer>::Consume(int lane, int64_t end) {
  LaneState& state = lanes_[static_cast<size_t>(lane)];
  state.releases[static_cast<size_t>(state.released) % state.releases.size()] = end;
  ++state.released;
  Pump(lane);
}

template <class Costs, class Observer>
inline void Play<Costs, Observer>::Produce(int lane, const RunAction& action, int64_t end) {
  if (lane < 0) {
    Deliver(action, end);
  } else if (receive_slots_ == 0) {
    Send(lane, action, end, 0);
  } else {
    lanes_[static_cast<size_t>(lane)].pending.push_back({end, action});
    Pump(lane);
  }
}

template <class Costs, class Observer>
void Play<Costs, Observer>::Pump(int lane) {
  LaneState& state = lanes_[static_cast<size_t>(lane)];
  const auto slots = static_cast<int64_t>(receive_slots_);
  while (state.next_pending < state.pending.size()) {
    int64_t not_before = 0;
    if (state.sent >= slots) {
      const int64_t needed = state.sent - slots;  // that many messages must be consumed
      if (needed >= state.released) return;
      not_before = state.releases[static_cast<size_t>(needed % slots)];
    }
    const Message message = state.pending[state.next_pending++];
    if (state.next_pending == state.pending.size()) {
      state.pending.clear();
      state.next_pending = 0;
    }
    Send(lane, message.action, message.ready, not_before);
  }
}

template <class Costs, class Observer>
inline void Play<Costs, Observer>::Send(int lane, const RunAction& action, int64_t ready,
                                        int64_t not_before) {
  LaneState& state = lanes_[static_cast<size_t>(lane)];
  const int64_t start = std::max({ready, state.free, not_before});
  const int64_t sent = start + state.takes.occupancy;
  state.free = sent;
  ++state.sent;
  const int64_t delivered = sent + state.takes.latency;
  observer_->OnTransfer(lane, action, ready, start, sent, delivered);
  Deliver(action, delivered);
}

template <class Costs, class Observer>
inline void Play<Costs, Observer>::Deliver(const RunAction& producer, int64_t at) {
  const bool forward = IsForward(producer.kind);
  const StageRoute& route = routes_[static_cast<size_t>(producer.stage)];
  const int stage = forward ? producer.stage + 1 : producer.stage - 1;
  int64_t& arrival =
      (forward ? forward_arrival_ : backward_arrival_)[Slot(stage, producer.microbatch)];
  CHECK(arrival == kNever);
  arrival = at;
  Wake(forward ? route.forward_rank : route.backward_rank);
}

template <class Costs, class Observer>
void Play<Costs, Observer>::CountGradient(const RunAction& action, int64_t end) {
  for (const int group : groups_of_[static_cast<size_t>(action.stage)]) {
    Reduction& reduction = At(group, action.step);
    reduction.ready = std::max(reduction.ready, end);
    if (--reduction.remaining > 0) continue;
    for (const int stage : schedule_.groups[static_cast<size_t>(group)].stages) {
      PumpReductions(schedule_.placement[static_cast<size_t>(stage)]);
    }
  }
}

/// Starts the collective at the head of the rank's reduce lane if it heads every member's and all
/// gradients are there; then looks at the next one.
template <class Costs, class Observer>
void Play<Costs, Observer>::PumpReductions(int rank) {
  for (;;) {
    const RankState& own = ranks_[static_cast<size_t>(rank)];
    if (own.next_reduction == own.reductions.size()) return;
    const auto [group, step] = own.reductions[own.next_reduction];
    Reduction& reduction = At(group, step);
    if (reduction.remaining > 0) return;
    const auto& stages = schedule_.groups[static_cast<size_t>(group)].stages;
    std::vector<int> members;
    for (const int stage : stages) {
      members.push_back(schedule_.placement[static_cast<size_t>(stage)]);
    }
    std::sort(members.begin(), members.end());
    members.erase(std::unique(members.begin(), members.end()), members.end());
    int64_t start = reduction.ready;
    for (const int member : members) {
      const RankState& state = ranks_[static_cast<size_t>(member)];
      if (state.next_reduction == state.reductions.size() ||
          state.reductions[state.next_reduction] != std::pair(group, step)) {
        return;
      }
      start = std::max(start, state.reduce_free);
    }
    reduction.end = start + costs_.OfReduction(group);
    for (const int member : members) {
      RankState& state = ranks_[static_cast<size_t>(member)];
      ++state.next_reduction;
      state.reduce_free = reduction.end;
      observer_->OnReduce(member, group, step, start, reduction.end);
      Wake(member);
    }
    for (const int member : members) {
      if (member != rank) PumpReductions(member);
    }
  }
}

template <class Costs, class Observer>
inline void Play<Costs, Observer>::Wake(int rank) {
  RankState& state = ranks_[static_cast<size_t>(rank)];
  if (state.queued) return;
  state.queued = true;
  queue_.push_back(rank);
}

}  // namespace pipelag
