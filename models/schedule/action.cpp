#include "models/schedule/action.h"

#include <array>

#include "models/error.h"

namespace pipelag {
namespace {

constexpr std::array kKinds = {ActionKind::kForward,       ActionKind::kBackward,
                               ActionKind::kBackwardInput, ActionKind::kBackwardWeight,
                               ActionKind::kUpdate,        ActionKind::kAllReduce,
                               ActionKind::kSendForward,   ActionKind::kReceiveForward,
                               ActionKind::kSendBackward,  ActionKind::kReceiveBackward};

}  // namespace

std::string_view KindName(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return "F";
    case ActionKind::kBackward:
      return "B";
    case ActionKind::kBackwardInput:
      return "I";
    case ActionKind::kBackwardWeight:
      return "W";
    case ActionKind::kUpdate:
      return "U";
    case ActionKind::kAllReduce:
      return "AR";
    case ActionKind::kSendForward:
      return "SEND_F";
    case ActionKind::kReceiveForward:
      return "RECV_F";
    case ActionKind::kSendBackward:
      return "SEND_B";
    case ActionKind::kReceiveBackward:
      return "RECV_B";
  }
  CheckFailed(__FILE__, __LINE__, "the kind is one of the enumerators");
}

std::optional<ActionKind> KindFromName(std::string_view name) {
  for (const ActionKind kind : kKinds) {
    if (KindName(kind) == name) return kind;
  }
  return std::nullopt;
}

}  // namespace pipelag
