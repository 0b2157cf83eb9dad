#include "runtime/transport.h"

#include <fmt/format.h>

namespace pipelag {

std::string WaitingForMessage(const Lane& lane, bool send, int64_t number) {
  return fmt::format("rank {} waits for rank {} to {} {} number {}",
                     send ? lane.sender : lane.receiver, send ? lane.receiver : lane.sender,
                     send ? "take" : "send", lane.payload == ActionKind::kSendForward ? "F" : "B",
                     number);
}

std::string WaitingForGroup(int rank, int group) {
  return fmt::format("rank {} waits for the other ranks of group {}", rank, group);
}

}  // namespace pipelag
