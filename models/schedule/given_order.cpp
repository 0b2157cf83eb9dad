#include "models/schedule/given_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include "models/schedule/serial_execution.h"
#include "models/schedule/text.h"

namespace pipelag {
namespace {

constexpr size_t kMostFindings = 20;

struct Spot {
  int rank = -1;
  int position = -1;
  int64_t place = 0;  ///< in the rank's endless order as seen from the micro-batch's own step
};

/// Everything about one message, by the stage that receives it and its number within the step.
struct Message {
  Spot producer;
  Spot send;
  Spot receive;
  Spot consumer;
};

class OrderChecker {
 public:
  explicit OrderChecker(const Schedule& schedule) : schedule_(schedule) {}

  std::vector<Finding> Run() {
    CHECK(schedule_.given_order.size() == schedule_.body.size());
    for (int rank = 0; rank < schedule_.ranks; ++rank) {
      const auto r = static_cast<size_t>(rank);
      std::vector<Action> computation = schedule_.given_order[r];
      std::erase_if(computation, [](const Action& a) { return IsTransfer(a.kind); });
      CHECK(computation == schedule_.body[r]);
      ReadRow(rank);
    }
    if (findings_.empty()) CheckMessages();
    if (findings_.empty()) CheckLanes();
    return std::move(findings_);
  }

 private:
  using Key = std::tuple<bool, int, int64_t>;  // forward, receiving stage, within the step

  const std::vector<Action>& Row(int rank) const {
    return schedule_.given_order[static_cast<size_t>(rank)];
  }
  std::string TextAt(const Spot& spot) const {
    return ActionText(schedule_, Row(spot.rank)[static_cast<size_t>(spot.position)]);
  }
  std::string Text(ActionKind kind, int placed, int64_t microbatch) const {
    return ActionText(
        schedule_, {static_cast<int32_t>(microbatch), static_cast<uint16_t>(placed), kind, false});
  }

  void Add(std::string message, const Spot& spot) {
    if (findings_.size() == kMostFindings) {
      findings_.push_back({"further findings are not listed", -1, -1});
    }
    if (findings_.size() > kMostFindings) return;
    findings_.push_back({std::move(message), spot.rank, spot.position});
  }

  void ReadRow(int rank) {
    const auto& row = Row(rank);
    const auto length = static_cast<int64_t>(row.size());
    for (size_t i = 0; i < row.size(); ++i) {
      const Action& a = row[i];
      if (!HasMicrobatch(a.kind)) continue;
      const int64_t place = static_cast<int64_t>(i) - schedule_.ShiftOf(a) * length;
      const Spot spot{rank, static_cast<int>(i), place};
      if (IsTransfer(a.kind)) {
        ReadTransfer(a, spot);
      } else {
        ReadCompute(a, spot);
      }
    }
  }

  void ReadCompute(const Action& a, const Spot& spot) {
    const int64_t i = schedule_.WithinStep(a);
    const auto crosses = [&](int from, int to) {
      return schedule_.placement[static_cast<size_t>(from)] !=
             schedule_.placement[static_cast<size_t>(to)];
    };
    const bool forward = IsForward(a.kind);
    if (!forward && !YieldsInputGradient(a.kind)) return;
    const int hop = forward ? 1 : -1;
    const bool begins = forward ? schedule_.IsFirst(a.stage) : schedule_.IsLast(a.stage);
    const bool ends = forward ? schedule_.IsLast(a.stage) : schedule_.IsFirst(a.stage);
    if (!begins && crosses(a.stage - hop, a.stage)) {
      messages_[{forward, a.stage, i}].consumer = spot;
    }
    if (!ends && crosses(a.stage, a.stage + hop)) {
      messages_[{forward, a.stage + hop, i}].producer = spot;
    }
  }

  void ReadTransfer(const Action& a, const Spot& spot) {
    const bool forward =
        a.kind == ActionKind::kSendForward || a.kind == ActionKind::kReceiveForward;
    const bool send = IsSend(a.kind);
    const std::string text = ActionText(schedule_, a);
    const bool known = a.stage < schedule_.placed_stages();
    if (!known) {
      Add(fmt::format("{} names a stage that does not exist: there are {}", text, schedule_.stages),
          spot);
      return;
    }
    const int home = schedule_.placement[a.stage];
    if (home != spot.rank) {
      Add(fmt::format("{} stands on rank {}, but its stage is placed on rank {}", text, spot.rank,
                      home),
          spot);
      return;
    }
    const bool last = forward == send ? schedule_.IsLast(a.stage) : schedule_.IsFirst(a.stage);
    if (last) {
      Add(fmt::format("{}: there is no stage {} to {}", text, forward == send ? "behind" : "before",
                      send ? "send to" : "receive from"),
          spot);
      return;
    }
    const int other = a.stage + (forward == send ? 1 : -1);
    if (schedule_.placement[static_cast<size_t>(other)] == spot.rank) {
      Add(fmt::format("{}: stage {} stands on rank {} too, so there is nothing to {}", text,
                      schedule_.SliceOf(other), spot.rank, send ? "send" : "receive"),
          spot);
      return;
    }
    Message& message = messages_[{forward, send ? other : a.stage, schedule_.WithinStep(a)}];
    Spot& half = send ? message.send : message.receive;
    if (half.rank >= 0) {
      Add(fmt::format("{} is there twice", text), spot);
      return;
    }
    half = spot;
  }

  void CheckMessages() {
    for (const auto& [key, message] : messages_) {
      const auto& [forward, stage, i] = key;
      const int64_t shown = ShownNumber(message, i);
      const std::string send = Text(forward ? ActionKind::kSendForward : ActionKind::kSendBackward,
                                    forward ? stage - 1 : stage + 1, shown);
      const std::string receive =
          Text(forward ? ActionKind::kReceiveForward : ActionKind::kReceiveBackward, stage, shown);
      if (message.send.rank < 0 && message.receive.rank < 0) {
        Add(fmt::format("{} gets no message: {} and {} are missing", TextAt(message.consumer), send,
                        receive),
            message.consumer);
      } else if (message.send.rank < 0) {
        Add(fmt::format("{} receives what is never sent: rank {} has no {}",
                        TextAt(message.receive), message.producer.rank, send),
            message.receive);
      } else if (message.receive.rank < 0) {
        Add(fmt::format("{} sends what is never received: rank {} has no {}", TextAt(message.send),
                        message.consumer.rank, receive),
            message.send);
      } else if (message.send.place < message.producer.place) {
        Add(fmt::format("{} stands before {}, whose result it sends", TextAt(message.send),
                        TextAt(message.producer)),
            message.send);
      } else if (message.receive.place > message.consumer.place) {
        Add(fmt::format("{} stands behind {}, which needs it", TextAt(message.receive),
                        TextAt(message.consumer)),
            message.receive);
      }
    }
  }

  /// The micro-batch as its consumer's cell names it.
  int64_t ShownNumber(const Message& message, int64_t within_step) const {
    const Spot& spot = message.consumer;
    if (spot.rank < 0) return within_step;
    return Row(spot.rank)[static_cast<size_t>(spot.position)].microbatch;
  }

  /// Within a lane all messages come in one order, that in which they are made.
  void CheckLanes() {
    std::map<std::tuple<int, int, bool>, std::vector<const Message*>> lanes;
    for (const auto& [key, message] : messages_) {
      lanes[{message.send.rank, message.receive.rank, std::get<0>(key)}].push_back(&message);
    }
    for (const auto& [lane, messages] : lanes) {
      Compare(messages, &Message::send, "leaves");
      Compare(messages, &Message::receive, "is received");
    }
  }

  /// Of any two messages of a lane, in all steps, the one made first must come first. As the orders
  /// are periodic, one is compared with the next within a period and once around its end.
  void Compare(const std::vector<const Message*>& messages, Spot Message::*half,
               std::string_view done) {
    const int64_t made_period = LengthOf(messages.front()->producer.rank);
    const int64_t period = LengthOf((messages.front()->*half).rank);
    struct Row {
      int64_t made;
      int64_t place;
      Spot spot;
    };
    std::vector<Row> rows;
    for (const Message* message : messages) {
      const int64_t repetition = FloorDiv(message->producer.place, made_period);
      const Spot& spot = message->*half;
      rows.push_back({message->producer.place - repetition * made_period,
                      spot.place - repetition * period, spot});
    }
    std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.made < b.made; });
    rows.push_back(rows.front());
    rows.back().place += period;
    for (size_t k = 1; k < rows.size(); ++k) {
      if (rows[k].place > rows[k - 1].place) continue;
      Add(fmt::format("{} {} before {}, though it is made after it: the messages of a lane keep "
                      "their order",
                      TextAt(rows[k].spot), done, TextAt(rows[k - 1].spot)),
          rows[k].spot);
      return;
    }
  }

  int64_t LengthOf(int rank) const { return static_cast<int64_t>(Row(rank).size()); }

  const Schedule& schedule_;
  std::map<Key, Message> messages_;
  std::vector<Finding> findings_;
};

std::vector<Finding> FindSerialDeadlock(const Program& program) {
  const Schedule& schedule = program.schedule();
  const int64_t steps = program.StepsThatShowAll();
  const std::vector<Wait> eager = SerialExecution(schedule, steps, Sends::kEager).Run();
  if (!eager.empty()) {
    return CycleFindings("deadlock under eager and rendezvous sends alike", eager);
  }
  if (schedule.sends == Sends::kEager) return {};
  const std::vector<Wait> meeting = SerialExecution(schedule, steps, Sends::kRendezvous).Run();
  if (meeting.empty()) return {};
  return CycleFindings("deadlock under rendezvous sends, though not under eager ones", meeting);
}

}  // namespace

void CheckGivenOrder(const Program& program) {
  const Schedule& schedule = program.schedule();
  if (schedule.given_order.empty()) return;
  std::vector<Finding> findings = OrderChecker(schedule).Run();
  if (findings.empty()) findings = FindSerialDeadlock(program);
  if (findings.empty()) return;
  Schedule shown = schedule;
  shown.body = shown.given_order;
  throw ScheduleError(shown, std::move(findings));
}

std::vector<std::vector<RunAction>> GivenIssueOrder(const Program& program) {
  SerialExecution execution(program.schedule(), program.steps(), program.schedule().sends);
  CHECK(execution.Run().empty());
  return execution.done();
}

}  // namespace pipelag
