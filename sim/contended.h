// Plays a program by the law of execution in the order of time, with what is shared in a run:
// messages and reductions are flows over a cluster, ranks take turns on cores. Where nothing is
// shared it agrees with Play to the nanosecond. Knows no spans, no metrics.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "models/schedule/play.h"
#include "sim/contended_layout.h"
#include "sim/contended_state.h"
#include "sim/event_queue.h"
#include "sim/network.h"
#include "sim/shared_cores.h"

namespace pipelag {

/// `Costs` and `Observer` as in Play; `costs` has one entry per replica, the observer is told of
/// replica 0 only, and of what a rank computes when it has ended. Nobody waits for a receive slot
/// while `receive_slots` is 0 (eager: the receiver holds what came early); else the sender holds a
/// message until its receiver has one (rendezvous).
template <class Costs, class Observer>
class Contended {
 public:
  Contended(const Program& program, std::span<const Costs> costs, const ContendedLayout& layout,
            int receive_slots, Observer& observer);

  /// Runs to the end or until nothing can go on.
  std::vector<Blocked> Run();
  /// Whether messages or reductions have slowed each other so far.
  bool slowed() const { return network_.slowed(); }

 private:
  using FlowOwner = contended::FlowOwner;
  using LaneState = contended::LaneState;
  using RankState = contended::RankState;
  using Reduction = contended::Reduction;
  using Running = contended::Running;
  enum EventKind : unsigned { kComputeEnd, kSharedComputeEnd, kFlowEnd, kDelivered, kRoundPart };

  void Dispatch(const QueuedEvent& event);
  void TryRank(int rank);
  bool InputReady(int replica, const RunAction& action) const;
  void EndCompute(int rank);
  void Finish(int rank, const RunAction& action);
  void PumpLane(int lane);
  void SentLane(int lane);
  void Deliver(int replica, const RunAction& producer);
  void StartFlow(const Route& route, Bytes bytes, const FlowOwner& owner);
  void SkipToReduction(int rank);
  void TryReduce(int collective);
  void StartRound(int collective);
  void EndReduction(int collective);

  int ReplicaOf(int rank) const { return rank / schedule_.ranks; }
  RankState& Rank(int rank) { return ranks_[static_cast<size_t>(rank)]; }
  size_t Slot(int replica, int stage, int64_t microbatch) const {
    const auto row = static_cast<size_t>(replica * schedule_.placed_stages() + stage);
    return row * window_ + (static_cast<size_t>(microbatch) & (window_ - 1));
  }
  size_t Cell(int collective, int64_t step) const {
    return static_cast<size_t>(collective) * step_window_ +
           (static_cast<size_t>(step) & (step_window_ - 1));
  }
  Reduction Fresh(const Collective& collective) const {
    return {collective.gradients, collective.updates, false};
  }

  const Program& program_;
  const Schedule& schedule_;
  std::span<const Costs> costs_;
  const ContendedLayout& layout_;
  int receive_slots_;
  Observer& observer_;
  size_t window_;
  size_t step_window_;
  EventQueue events_;
  Network network_;
  std::optional<SharedCores> cores_;  // nothing: each rank has one of its own
  int64_t now_ = 0;
  std::vector<uint8_t> forward_arrived_;   // [replica][stage][micro-batch]: input of F
  std::vector<uint8_t> backward_arrived_;  // input of B or I
  std::vector<RankState> ranks_;           // of all replicas
  std::vector<LaneState> lanes_;
  std::vector<Reduction> reductions_;
  std::vector<Running> running_;   // per collective: one at a time, for its members' lanes are busy
  std::vector<FlowOwner> owners_;  // per flow
};

template <class Costs, class Observer>
Contended<Costs, Observer>::Contended(const Program& program, std::span<const Costs> costs,
                                      const ContendedLayout& layout, int receive_slots,
                                      Observer& observer)
    : program_(program),
      schedule_(program.schedule()),
      costs_(costs),
      layout_(layout),
      receive_slots_(receive_slots),
      observer_(observer),
      window_(static_cast<size_t>(program.window())),
      // Replicas may be a step apart at a reduction they share.
      step_window_(4 * static_cast<size_t>(program.step_window())),
      network_(layout.channels, events_, kFlowEnd),
      lanes_(layout.lane_routes.size()),
      running_(layout.collectives.size()) {
  const auto replicas = static_cast<size_t>(layout.replicas);
  CHECK(costs.size() == replicas);
  if (layout.cores > 0) cores_.emplace(layout.cores, events_, kSharedComputeEnd);
  const size_t cells = replicas * static_cast<size_t>(schedule_.placed_stages()) * window_;
  forward_arrived_.assign(cells, 0);
  backward_arrived_.assign(cells, 0);
  for (int rank = 0; rank < layout.replicas * schedule_.ranks; ++rank) {
    const LaneWalk walk(program, rank % schedule_.ranks);
    ranks_.push_back({.walk = walk, .reductions = walk, .running = {}, .other_half = {}});
  }
  for (const Collective& collective : layout.collectives) {
    reductions_.insert(reductions_.end(), step_window_, Fresh(collective));
  }
}

template <class Costs, class Observer>
std::vector<Blocked> Contended<Costs, Observer>::Run() {
  for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
    SkipToReduction(rank);
    TryRank(rank);
  }
  for (;;) {
    if (!network_.settled() && (events_.empty() || events_.top().time > now_)) {
      network_.Settle(now_);
      continue;
    }
    if (events_.empty()) break;
    const QueuedEvent event = events_.Pop();
    now_ = event.time;
    Dispatch(event);
  }
  std::vector<Blocked> blocked;
  for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
    const RankState& state = Rank(rank);
    if (!state.walk.done()) blocked.push_back({rank % schedule_.ranks, state.walk.action()});
  }
  return blocked;
}

template <class Costs, class Observer>
void Contended<Costs, Observer>::Dispatch(const QueuedEvent& event) {
  const int subject = event.subject;
  switch (static_cast<EventKind>(event.kind())) {
    case kComputeEnd:
      EndCompute(subject);
      return;
    case kSharedComputeEnd:
      if (!cores_->Stands(event)) return;
      cores_->End(now_);
      EndCompute(subject);
      return;
    case kFlowEnd: {
      if (!network_.Stands(event)) return;
      network_.End(subject);
      const FlowOwner owner = owners_[static_cast<size_t>(subject)];
      if (owner.collective) {
        events_.Push(now_ + owner.latency, kRoundPart, owner.index);
      } else {
        SentLane(owner.index);
        PumpLane(owner.index);
      }
      return;
    }
    case kDelivered: {
      const int lanes = static_cast<int>(program_.lanes().size());
      Deliver(subject / lanes, lanes_[static_cast<size_t>(subject)].on_their_way.Pop().action);
      return;
    }
    case kRoundPart: {
      Running& running = running_[static_cast<size_t>(subject)];
      if (--running.missing > 0) return;
      const auto& rounds = layout_.collectives[static_cast<size_t>(subject)].rounds;
      if (running.round < rounds.size() && ++running.repeat == rounds[running.round].repeats) {
        running.repeat = 0;
        ++running.round;
      }
      if (running.round < rounds.size()) {
        StartRound(subject);
      } else {
        EndReduction(subject);
      }
      return;
    }
  }
}

/// Starts the next action of the rank's compute lane if the lane is free and its data is there.
template <class Costs, class Observer>
void Contended<Costs, Observer>::TryRank(int rank) {
  RankState& state = Rank(rank);
  if (state.busy) return;
  while (!state.walk.done() && state.walk.action().kind == ActionKind::kAllReduce) {
    state.walk.Advance();
  }
  if (state.walk.done()) return;
  const int replica = ReplicaOf(rank);
  const auto& costs = costs_[static_cast<size_t>(replica)];
  const RunAction action = state.walk.action();
  if (!InputReady(replica, action)) return;
  int64_t takes = 0;
  state.overlapped = action.overlaps_next;
  if (action.overlaps_next) {
    const LaneWalk before = state.walk;
    state.walk.Advance();
    state.other_half = state.walk.action();
    if (!InputReady(replica, state.other_half)) {
      state.walk = before;
      return;
    }
    takes = costs.OfOverlap(action, state.other_half);
  } else {
    takes = costs.Of(action);
  }
  state.walk.Advance();
  state.running = action;
  state.start = now_;
  state.busy = true;
  if (cores_ && takes > 0) {
    cores_->Start(rank, takes, now_);
  } else {
    events_.Push(now_ + takes, kComputeEnd, rank);
  }
}

template <class Costs, class Observer>
void Contended<Costs, Observer>::EndCompute(int rank) {
  RankState& state = Rank(rank);
  if (ReplicaOf(rank) == 0) {
    observer_.OnCompute(rank, state.running, state.free, state.start, now_, state.overlapped);
    if (state.overlapped) {
      observer_.OnCompute(rank, state.other_half, state.free, state.start, now_, true);
    }
  }
  state.free = now_;
  Finish(rank, state.running);  // the lane stays taken: nothing may start in between
  if (state.overlapped) Finish(rank, state.other_half);
  state.busy = false;
  TryRank(rank);
}

template <class Costs, class Observer>
bool Contended<Costs, Observer>::InputReady(int replica, const RunAction& action) const {
  if (IsForward(action.kind)) {
    return schedule_.IsFirst(action.stage) ||
           forward_arrived_[Slot(replica, action.stage, action.microbatch)] != 0;
  }
  if (YieldsInputGradient(action.kind)) {
    return schedule_.IsLast(action.stage) ||
           backward_arrived_[Slot(replica, action.stage, action.microbatch)] != 0;
  }
  if (action.kind != ActionKind::kUpdate) return true;
  for (const int group : layout_.groups_of[static_cast<size_t>(action.stage)]) {
    if (!reductions_[Cell(layout_.CollectiveOf(group, replica), action.step)].ended) return false;
  }
  return true;
}

template <class Costs, class Observer>
void Contended<Costs, Observer>::Finish(int rank, const RunAction& action) {
  const int replica = ReplicaOf(rank);
  if (IsForward(action.kind) || YieldsInputGradient(action.kind)) {
    const bool forward = IsForward(action.kind);
    (forward ? forward_arrived_
             : backward_arrived_)[Slot(replica, action.stage, action.microbatch)] = 0;
    const int lanes = static_cast<int>(program_.lanes().size());
    const int lane = program_.ProducedLane(action.kind, action.stage);
    if (lane >= 0) {
      const int index = replica * lanes + lane;
      lanes_[static_cast<size_t>(index)].pending.Push({now_, action});
      PumpLane(index);
    } else if (forward ? !schedule_.IsLast(action.stage) : !schedule_.IsFirst(action.stage)) {
      Deliver(replica, action);
    }
    const int consumed = program_.ConsumedLane(action.kind, action.stage);
    if (consumed >= 0) {
      const int index = replica * lanes + consumed;
      ++lanes_[static_cast<size_t>(index)].released;
      PumpLane(index);
    }
  }
  if (schedule_.groups.empty()) return;
  for (const int group : layout_.groups_of[static_cast<size_t>(action.stage)]) {
    const int collective = layout_.CollectiveOf(group, replica);
    Reduction& reduction = reductions_[Cell(collective, action.step)];
    if (YieldsWeightGradient(action.kind)) {
      CHECK(reduction.gradients > 0);
      if (--reduction.gradients == 0) TryReduce(collective);
    } else if (action.kind == ActionKind::kUpdate && --reduction.updates == 0) {
      // The cell's last reader frees it for a later step.
      reduction = Fresh(layout_.collectives[static_cast<size_t>(collective)]);
    }
  }
}

/// Starts lane's next message if the lane is free and its receiver has a slot.
template <class Costs, class Observer>
void Contended<Costs, Observer>::PumpLane(int lane) {
  LaneState& state = lanes_[static_cast<size_t>(lane)];
  while (!state.busy && !state.pending.empty()) {
    if (receive_slots_ > 0 && state.sent - state.released >= receive_slots_) return;
    state.sending = state.pending.Pop();
    state.start = now_;
    state.busy = true;
    ++state.sent;
    const Route& route =
        layout_.routes[static_cast<size_t>(layout_.lane_routes[static_cast<size_t>(lane)])];
    const Bytes bytes = layout_.lane_bytes[static_cast<size_t>(lane)];
    if (route.channels.empty() || bytes == 0) {
      SentLane(lane);
    } else {
      StartFlow(route, bytes, {false, lane, route.latency.count()});
    }
  }
}

/// The lane's message has left; it is delivered after the way's latency, which occupies nothing.
template <class Costs, class Observer>
void Contended<Costs, Observer>::SentLane(int lane) {
  LaneState& state = lanes_[static_cast<size_t>(lane)];
  const int lanes = static_cast<int>(program_.lanes().size());
  const Route& route =
      layout_.routes[static_cast<size_t>(layout_.lane_routes[static_cast<size_t>(lane)])];
  const int64_t delivered = now_ + route.latency.count();
  state.busy = false;
  if (lane < lanes) {
    observer_.OnTransfer(lane, state.sending.action, state.sending.ready, state.start, now_,
                         delivered);
  }
  state.on_their_way.Push(state.sending);
  events_.Push(delivered, kDelivered, lane);
}

template <class Costs, class Observer>
void Contended<Costs, Observer>::Deliver(int replica, const RunAction& producer) {
  const bool forward = IsForward(producer.kind);
  const int stage = forward ? producer.stage + 1 : producer.stage - 1;
  uint8_t& arrived =
      (forward ? forward_arrived_ : backward_arrived_)[Slot(replica, stage, producer.microbatch)];
  CHECK(arrived == 0);
  arrived = 1;
  TryRank(replica * schedule_.ranks + schedule_.placement[static_cast<size_t>(stage)]);
}

template <class Costs, class Observer>
void Contended<Costs, Observer>::StartFlow(const Route& route, Bytes bytes,
                                           const FlowOwner& owner) {
  const auto flow = static_cast<size_t>(network_.Start(route.channels, bytes, now_));
  if (flow >= owners_.size()) owners_.resize(flow + 1);
  owners_[flow] = owner;
}

template <class Costs, class Observer>
void Contended<Costs, Observer>::SkipToReduction(int rank) {
  LaneWalk& walk = Rank(rank).reductions;
  if (schedule_.groups.empty()) return;
  while (!walk.done() && walk.action().kind != ActionKind::kAllReduce) walk.Advance();
}

/// Starts the collective if it heads every member's reduce lane and all its gradients are there.
template <class Costs, class Observer>
void Contended<Costs, Observer>::TryReduce(int index) {
  const Collective& collective = layout_.collectives[static_cast<size_t>(index)];
  const RankState& first = Rank(collective.members.front());
  if (first.reductions.done()) return;
  const int64_t step = first.reductions.action().step;
  for (const int member : collective.members) {
    const RankState& state = Rank(member);
    if (state.reducing || state.reductions.done() ||
        state.reductions.action().stage != collective.group ||
        state.reductions.action().step != step) {
      return;
    }
  }
  if (reductions_[Cell(index, step)].gradients > 0) return;
  for (const int member : collective.members) Rank(member).reducing = true;
  running_[static_cast<size_t>(index)] = {.start = now_, .step = step};
  if (!collective.rounds.empty()) {
    StartRound(index);
    return;
  }
  running_[static_cast<size_t>(index)].missing = 1;
  events_.Push(now_ + (collective.timed ? costs_[0].OfReduction(collective.group) : 0), kRoundPart,
               index);
}

template <class Costs, class Observer>
void Contended<Costs, Observer>::StartRound(int index) {
  Running& running = running_[static_cast<size_t>(index)];
  const CollectiveRound& round =
      layout_.collectives[static_cast<size_t>(index)].rounds[running.round];
  running.missing = static_cast<int>(round.messages.size());
  for (const CollectiveMessage& message : round.messages) {
    const Route& route = layout_.RouteOf(message.sender, message.receiver);
    if (route.channels.empty() || message.bytes == 0) {
      events_.Push(now_ + route.latency.count(), kRoundPart, index);
    } else {
      StartFlow(route, message.bytes, {true, index, route.latency.count()});
    }
  }
}

template <class Costs, class Observer>
void Contended<Costs, Observer>::EndReduction(int index) {
  const Collective& collective = layout_.collectives[static_cast<size_t>(index)];
  const Running& running = running_[static_cast<size_t>(index)];
  reductions_[Cell(index, running.step)].ended = true;
  for (const int member : collective.members) {
    RankState& state = Rank(member);
    state.reducing = false;
    if (member < schedule_.ranks) {
      observer_.OnReduce(member, collective.group, running.step, running.start, now_);
    }
    state.reductions.Advance();
    SkipToReduction(member);
    TryRank(member);
  }
  for (const int member : collective.members) {
    const RankState& state = Rank(member);
    if (state.reductions.done()) continue;
    TryReduce(layout_.CollectiveOf(state.reductions.action().stage, ReplicaOf(member)));
  }
}

}  // namespace pipelag
