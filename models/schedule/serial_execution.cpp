#include "models/schedule/serial_execution.h"

#include <algorithm>

#include "models/schedule/text.h"

namespace pipelag {

SerialExecution::SerialExecution(const Schedule& schedule, int64_t steps, Sends sends)
    : schedule_(schedule),
      sends_(sends),
      next_(static_cast<size_t>(schedule.ranks)),
      done_(static_cast<size_t>(schedule.ranks)) {
  for (const std::vector<Action>& row : schedule.given_order) {
    std::vector<RunAction>& order = order_.emplace_back();
    for (LaneWalk walk(schedule, row, steps); !walk.done(); walk.Advance()) {
      order.push_back(walk.action());
    }
  }
  for (size_t g = 0; g < schedule.groups.size(); ++g) {
    const auto group = static_cast<int>(g);
    const auto gradients =
        static_cast<int64_t>(schedule.groups[g].stages.size()) * schedule.microbatches_per_stream();
    for (int64_t t = 0; t < steps; ++t) missing_[{group, t}] = gradients + MembersOf(group);
  }
}

bool SerialExecution::Done(int rank) const {
  const auto r = static_cast<size_t>(rank);
  return next_[r] == order_[r].size();
}

const RunAction& SerialExecution::Head(int rank) const {
  const auto r = static_cast<size_t>(rank);
  return order_[r][next_[r]];
}

int64_t SerialExecution::MembersOf(int group) const {
  std::set<int> ranks;
  for (const int stage : schedule_.groups[static_cast<size_t>(group)].stages) {
    ranks.insert(schedule_.placement[static_cast<size_t>(stage)]);
  }
  return static_cast<int64_t>(ranks.size());
}

SerialExecution::Message SerialExecution::MessageOf(const RunAction& transfer) const {
  const bool forward =
      transfer.kind == ActionKind::kSendForward || transfer.kind == ActionKind::kReceiveForward;
  const int hop = forward ? 1 : -1;
  return {forward, transfer.stage + (IsSend(transfer.kind) ? hop : 0), transfer.microbatch};
}

int SerialExecution::PeerOf(const RunAction& transfer) const {
  const auto& [forward, receiving, i] = MessageOf(transfer);
  const int hop = forward ? 1 : -1;
  const int stage = IsSend(transfer.kind) ? receiving : receiving - hop;
  return schedule_.placement[static_cast<size_t>(stage)];
}

std::vector<Wait> SerialExecution::Run() {
  for (int rank = schedule_.ranks; rank-- > 0;) queue_.push_back(rank);
  while (!queue_.empty()) {
    const int rank = queue_.back();
    queue_.pop_back();
    while (!Done(rank) && Step(rank)) {
    }
  }
  std::vector<Wait> waits;
  for (int rank = 0; rank < schedule_.ranks; ++rank) {
    if (!Done(rank)) waits.push_back(WaitOf(rank));
  }
  return waits;
}

/// The rank's next action; false if it has to wait.
bool SerialExecution::Step(int rank) {
  const RunAction& action = Head(rank);
  if (IsSend(action.kind)) return StepSend(rank);
  if (IsReceive(action.kind)) return StepReceive(rank);
  if (action.kind == ActionKind::kAllReduce) {
    ++next_[static_cast<size_t>(rank)];
    Collect(action.stage, action.step);
    return true;
  }
  if (action.kind == ActionKind::kUpdate && !MayUpdate(action)) return false;
  Finish(rank);
  if (YieldsWeightGradient(action.kind)) CountGradient(action);
  return true;
}

bool SerialExecution::StepSend(int rank) {
  const RunAction& send = Head(rank);
  const int peer = PeerOf(send);
  if (sends_ == Sends::kEager) {
    under_way_.insert(MessageOf(send));
  } else {
    if (Done(peer) || !IsReceive(Head(peer).kind)) return false;
    if (MessageOf(Head(peer)) != MessageOf(send)) return false;
    Finish(peer);
  }
  Finish(rank);
  queue_.push_back(peer);
  return true;
}

bool SerialExecution::StepReceive(int rank) {
  if (sends_ == Sends::kEager) {
    if (under_way_.erase(MessageOf(Head(rank))) == 0) return false;
    Finish(rank);
    return true;
  }
  const int peer = PeerOf(Head(rank));
  if (Done(peer) || !IsSend(Head(peer).kind)) return false;
  if (MessageOf(Head(peer)) != MessageOf(Head(rank))) return false;
  Finish(rank);
  Finish(peer);
  queue_.push_back(peer);
  return true;
}

void SerialExecution::Finish(int rank) {
  done_[static_cast<size_t>(rank)].push_back(Head(rank));
  ++next_[static_cast<size_t>(rank)];
}

void SerialExecution::CountGradient(const RunAction& action) {
  for (size_t g = 0; g < schedule_.groups.size(); ++g) {
    const auto& stages = schedule_.groups[g].stages;
    if (std::binary_search(stages.begin(), stages.end(), action.stage)) {
      Collect(static_cast<int>(g), action.step);
    }
  }
}

/// One thing less that the AR waits for.
void SerialExecution::Collect(int group, int64_t step) {
  if (--missing_.at({group, step}) > 0) return;
  std::set<int> ranks;
  for (const int stage : schedule_.groups[static_cast<size_t>(group)].stages) {
    ranks.insert(schedule_.placement[static_cast<size_t>(stage)]);
  }
  for (const int rank : ranks) {
    RunAction reduction{ActionKind::kAllReduce, group, step, step};
    reduction.position = -1;
    done_[static_cast<size_t>(rank)].push_back(reduction);
    queue_.push_back(rank);
  }
}

bool SerialExecution::MayUpdate(const RunAction& update) const {
  for (size_t g = 0; g < schedule_.groups.size(); ++g) {
    const auto& stages = schedule_.groups[g].stages;
    if (std::binary_search(stages.begin(), stages.end(), update.stage) &&
        missing_.at({static_cast<int>(g), update.step}) > 0) {
      return false;
    }
  }
  return true;
}

Place SerialExecution::PlaceOf(int rank, const RunAction& action) const {
  const auto& row = schedule_.given_order[static_cast<size_t>(rank)];
  return {ActionText(schedule_, row[static_cast<size_t>(action.position)]), rank, action.position};
}

Wait SerialExecution::WaitOf(int rank) const {
  const RunAction& head = Head(rank);
  if (!IsTransfer(head.kind)) return WaitOfUpdate(rank);
  const int peer = PeerOf(head);
  const auto& order = order_[static_cast<size_t>(peer)];
  const auto other = std::find_if(order.begin(), order.end(), [&](const RunAction& a) {
    return IsTransfer(a.kind) && IsSend(a.kind) != IsSend(head.kind) &&
           MessageOf(a) == MessageOf(head);
  });
  CHECK(other != order.end());
  return {rank, PlaceOf(rank, head), peer, PlaceOf(peer, *other)};
}

/// What an AR before the update is short of: a member's post, or a gradient.
Wait SerialExecution::WaitOfUpdate(int rank) const {
  const RunAction& update = Head(rank);
  for (size_t g = 0; g < schedule_.groups.size(); ++g) {
    const auto& stages = schedule_.groups[g].stages;
    if (!std::binary_search(stages.begin(), stages.end(), update.stage)) continue;
    for (const int stage : stages) {
      const int member = schedule_.placement[static_cast<size_t>(stage)];
      const auto& order = order_[static_cast<size_t>(member)];
      for (size_t i = next_[static_cast<size_t>(member)]; i < order.size(); ++i) {
        const RunAction& a = order[i];
        const bool post = a.kind == ActionKind::kAllReduce && a.stage == static_cast<int>(g);
        const bool gradient = YieldsWeightGradient(a.kind) && a.stage == stage;
        if ((post || gradient) && a.step == update.step) {
          return {rank, PlaceOf(rank, update), member, PlaceOf(member, a)};
        }
      }
    }
  }
  CHECK(false);
}

}  // namespace pipelag
