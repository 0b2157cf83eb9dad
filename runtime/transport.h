// How buffers move between ranks: the other half of a backend. Independent of what is computed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "models/schedule/program.h"
#include "runtime/event.h"

namespace pipelag {

/// One half of a message. The k-th send and the k-th receive posted on a lane meet.
struct Transfer {
  int lane = 0;
  bool send = false;
  std::byte* buffer = nullptr;  ///< sends only read it
  size_t bytes = 0;
};

/// The gradients of one stage in a sum over its copies.
struct GradientPart {
  int stage = 0;  ///< placed stage
  std::span<float> values;
};

/// One rank's end of the transport. Posting never waits for the other rank. The event of a send
/// happens when its buffer may be overwritten, that of a receive when the buffer is filled; both
/// say when the message was under way.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual EventPtr Post(const Transfer& transfer, std::span<const EventPtr> after) = 0;
  /// Replaces the gradients of every member stage of the group, all copies of a slice, by their
  /// sum. Those of one replica are added first, in ascending order of the stages: (first + second)
  /// + third; then the replicas' sums likewise. `parts`: those of this rank, ascending. As with
  /// other collectives every member rank posts the same ones in the same order.
  virtual EventPtr PostGradientSum(int group, const std::vector<GradientPart>& parts,
                                   std::span<const EventPtr> after) = 0;
  /// Replaces `values` on every member rank of the group by their sum, added in rank order. Every
  /// member posts the same collectives in the same order, with as many values.
  virtual EventPtr PostAllReduce(int group, std::span<double> values,
                                 std::span<const EventPtr> after) = 0;
};

/// "rank 1 waits for rank 0 to send F number 2": whoever waits for a half of a message, the
/// `number`-th of its lane.
std::string WaitingForMessage(const Schedule& schedule, const Lane& lane, bool send,
                              int64_t number);
/// "rank 1 waits for rank 0 to take the norm".
std::string WaitingForGroup(const Schedule& schedule, int rank, int group);

}  // namespace pipelag
