// Ranks that do one thing after the other and wait for their peers: a send for its receive, an AR
// for all its members. Written from the prose of the law, to hold an issue order against.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "models/schedule/program.h"
#include "models/schedule/text.h"

namespace pipelag {

using Orders = std::vector<std::vector<RunAction>>;

class SerialRanks {
 public:
  SerialRanks(const Schedule& schedule, const Orders& orders)
      : s_(schedule), orders_(orders), next_(orders.size()) {}

  /// "" if all ranks come to their ends and no action starts without its data.
  std::string Run() {
    for (bool any = true; any;) {
      any = false;
      for (size_t rank = 0; rank < orders_.size(); ++rank) {
        while (Step(static_cast<int>(rank))) any = true;
      }
    }
    for (size_t rank = 0; rank < orders_.size(); ++rank) {
      if (next_[rank] < orders_[rank].size())
        wrong_ += "stuck: rank " + std::to_string(rank) + '\n';
    }
    return wrong_;
  }

 private:
  const RunAction* Head(int rank) const {
    const auto r = static_cast<size_t>(rank);
    return next_[r] < orders_[r].size() ? &orders_[r][next_[r]] : nullptr;
  }
  int RankOf(int placed) const { return s_.placement[static_cast<size_t>(placed)]; }
  void Advance(int rank) { ++next_[static_cast<size_t>(rank)]; }

  bool Step(int rank) {
    const RunAction* a = Head(rank);
    if (a == nullptr) return false;
    switch (a->kind) {
      case ActionKind::kSendForward:
        return Meet(rank, *a, a->stage + 1, ActionKind::kReceiveForward);
      case ActionKind::kSendBackward:
        return Meet(rank, *a, a->stage - 1, ActionKind::kReceiveBackward);
      case ActionKind::kReceiveForward:
      case ActionKind::kReceiveBackward:
        return false;  // its sender's step does both
      case ActionKind::kAllReduce:
        return Collective(*a);
      case ActionKind::kForward:
      case ActionKind::kBackward:
      case ActionKind::kBackwardInput:
      case ActionKind::kBackwardWeight:
      case ActionKind::kUpdate:
        break;
    }
    std::vector<const RunAction*> actions{a};
    if (a->overlaps_next) actions.push_back(a + 1);
    for (const RunAction* action : actions) CheckData(rank, *action);
    for (const RunAction* action : actions) {
      done_.insert({action->kind, action->stage, action->microbatch});
      Advance(rank);
    }
    return true;
  }

  bool Meet(int rank, const RunAction& send, int to, ActionKind receive) {
    const RunAction* other = Head(RankOf(to));
    if (other == nullptr || other->kind != receive || other->stage != to ||
        other->microbatch != send.microbatch) {
      return false;
    }
    const bool forward = receive == ActionKind::kReceiveForward;
    if (!Made(forward, send.stage, send.microbatch)) wrong_ += "a send of nothing\n";
    received_.insert({forward, to, send.microbatch});
    Advance(RankOf(to));
    Advance(rank);
    return true;
  }

  bool Collective(const RunAction& reduction) {
    std::set<int> members;
    for (const int stage : s_.groups[static_cast<size_t>(reduction.stage)].stages) {
      members.insert(RankOf(stage));
    }
    for (const int member : members) {
      const RunAction* a = Head(member);
      if (a == nullptr || a->kind != ActionKind::kAllReduce || a->stage != reduction.stage ||
          a->step != reduction.step) {
        return false;
      }
    }
    done_.insert({ActionKind::kAllReduce, reduction.stage, reduction.step});
    for (const int member : members) Advance(member);
    return true;
  }

  bool Made(bool forward, int stage, int64_t i) const {
    if (forward) return done_.contains({ActionKind::kForward, stage, i});
    return done_.contains({ActionKind::kBackward, stage, i}) ||
           done_.contains({ActionKind::kBackwardInput, stage, i});
  }

  void CheckData(int rank, const RunAction& a) {
    const bool forward = IsForward(a.kind);
    bool there = true;
    if (forward || YieldsInputGradient(a.kind)) {
      const int from = forward ? a.stage - 1 : a.stage + 1;
      const bool none = forward ? s_.IsFirst(a.stage) : s_.IsLast(a.stage);
      if (!none) {
        there = RankOf(from) == rank ? Made(forward, from, a.microbatch)
                                     : received_.contains({forward, a.stage, a.microbatch});
      }
      if (!forward) there = there && Made(true, a.stage, a.microbatch);
    } else if (a.kind == ActionKind::kBackwardWeight) {
      there = Made(false, a.stage, a.microbatch);
    } else {
      for (size_t g = 0; g < s_.groups.size(); ++g) {
        for (const int stage : s_.groups[g].stages) {
          if (stage != a.stage) continue;
          there = there && done_.contains({ActionKind::kAllReduce, static_cast<int>(g), a.step});
        }
      }
    }
    if (!there) {
      wrong_ += std::string(KindName(a.kind)) + " of " + std::to_string(a.microbatch) +
                " starts without its data\n";
    }
  }

  const Schedule& s_;
  const Orders& orders_;
  std::vector<size_t> next_;
  std::set<std::tuple<ActionKind, int, int64_t>> done_;
  std::set<std::tuple<bool, int, int64_t>> received_;
  std::string wrong_;
};

/// The messages between two ranks as one of them meets them: (kind of the payload, receiving stage,
/// micro-batch), both directions.
inline std::vector<std::tuple<bool, int, int64_t>> MessagesWith(
    const Schedule& s, int peer, const std::vector<RunAction>& order) {
  std::vector<std::tuple<bool, int, int64_t>> messages;
  for (const RunAction& a : order) {
    if (!IsTransfer(a.kind)) continue;
    const bool forward =
        a.kind == ActionKind::kSendForward || a.kind == ActionKind::kReceiveForward;
    const int hop = forward ? 1 : -1;
    const int other = IsSend(a.kind) ? a.stage + hop : a.stage - hop;
    if (s.placement[static_cast<size_t>(other)] != peer) continue;
    messages.emplace_back(forward, IsSend(a.kind) ? other : a.stage, a.microbatch);
  }
  return messages;
}

/// All that an issue order promises; of eager sends only that nothing is lost or out of order.
inline void ExpectIssueOrder(const Program& program, const Orders& orders, bool rendezvous = true) {
  const Schedule& s = program.schedule();
  ASSERT_EQ(static_cast<int>(orders.size()), s.ranks);
  if (rendezvous) {
    ASSERT_EQ(SerialRanks(s, orders).Run(), "");
  }
  for (int rank = 0; rank < s.ranks; ++rank) {
    const auto& order = orders[static_cast<size_t>(rank)];
    size_t next = 0;
    for (LaneWalk walk(program, rank); !walk.done(); walk.Advance()) {
      const RunAction& a = walk.action();
      if (a.kind == ActionKind::kAllReduce) continue;
      while (next < order.size() &&
             (IsTransfer(order[next].kind) || order[next].kind == ActionKind::kAllReduce)) {
        ++next;
      }
      ASSERT_LT(next, order.size());
      ASSERT_EQ(order[next].kind, a.kind);
      ASSERT_EQ(order[next].stage, a.stage);
      ASSERT_EQ(order[next].microbatch, a.microbatch);
      ASSERT_EQ(order[next].overlaps_next, a.overlaps_next);
      ++next;
    }
    for (int peer = 0; peer < rank && rendezvous; ++peer) {
      ASSERT_EQ(MessagesWith(s, peer, order),
                MessagesWith(s, rank, orders[static_cast<size_t>(peer)]));
    }
  }
}

}  // namespace pipelag
