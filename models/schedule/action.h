// One thing a rank does. The letters are those of PyTorch's pipelining schedules, plus AR and U.
// Beware: the zero-bubble papers write B for what is `I` here.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace pipelag {

enum class ActionKind : uint8_t {
  kForward,          ///< F
  kBackward,         ///< B: the full backward
  kBackwardInput,    ///< I: backward for the input
  kBackwardWeight,   ///< W: backward for the weights
  kUpdate,           ///< U: optimizer update of a stage
  kAllReduce,        ///< AR: over a collective group
  kSendForward,      ///< SEND_F
  kReceiveForward,   ///< RECV_F
  kSendBackward,     ///< SEND_B
  kReceiveBackward,  ///< RECV_B
};

/// "F", "SEND_F", …
std::string_view KindName(ActionKind kind);
std::optional<ActionKind> KindFromName(std::string_view name);

constexpr bool IsForward(ActionKind kind) { return kind == ActionKind::kForward; }

/// B or I: what produces the gradient for the stage before.
constexpr bool YieldsInputGradient(ActionKind kind) {
  return kind == ActionKind::kBackward || kind == ActionKind::kBackwardInput;
}

/// B or W: what adds to the stage's weight gradient and frees the activation.
constexpr bool YieldsWeightGradient(ActionKind kind) {
  return kind == ActionKind::kBackward || kind == ActionKind::kBackwardWeight;
}

/// F, B, I, W: the kinds that carry a micro-batch number; U and AR carry a step number instead.
constexpr bool HasMicrobatch(ActionKind kind) {
  return kind != ActionKind::kUpdate && kind != ActionKind::kAllReduce;
}

constexpr bool IsSend(ActionKind kind) {
  return kind == ActionKind::kSendForward || kind == ActionKind::kSendBackward;
}
constexpr bool IsReceive(ActionKind kind) {
  return kind == ActionKind::kReceiveForward || kind == ActionKind::kReceiveBackward;
}
constexpr bool IsTransfer(ActionKind kind) { return IsSend(kind) || IsReceive(kind); }

/// An entry of a schedule's body: 8 bytes, since fresh memory is the dearest thing a fast simulator
/// touches.
struct Action {
  /// Relative to the step the body lays out, may be negative or ≥ m. For U and AR: relative step.
  int32_t microbatch = 0;
  /// Placed stage (see Schedule::PlacedStage); for AR: index of the collective group.
  uint16_t stage = 0;
  ActionKind kind = ActionKind::kForward;
  /// OVERLAP: this F and the B or I that follows it are one action of one duration.
  bool overlaps_next = false;

  bool operator==(const Action&) const = default;
};
static_assert(sizeof(Action) == 8);

}  // namespace pipelag
