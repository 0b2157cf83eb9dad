// How buffers move between ranks: the other half of a backend. Independent of what is computed.
#pragma once

#include <cstddef>
#include <span>

#include "runtime/event.h"

namespace pipelag {

/// One half of a message. The k-th send and the k-th receive posted on a lane meet.
struct Transfer {
  int lane = 0;
  bool send = false;
  std::byte* buffer = nullptr;  ///< sends only read it
  size_t bytes = 0;
};

/// One rank's end of the transport. Posting never waits for the other rank. The event of a send
/// happens when its buffer may be overwritten, that of a receive when the buffer is filled; both say
/// when the message was under way.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual EventPtr Post(const Transfer& transfer, std::span<const EventPtr> after) = 0;
  /// Replaces `values` on every member rank of the group by their sum, added in rank order. Every
  /// member posts the same collectives in the same order, with as many values.
  virtual EventPtr PostAllReduce(int group, std::span<double> values,
                                 std::span<const EventPtr> after) = 0;
};

}  // namespace pipelag
