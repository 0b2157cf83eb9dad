// A transport whose sends return only when they have been received, around any other: what buffers
// would hide, hangs here.
#pragma once

#include "tests/runtime/transport_around.h"

namespace pipelag {

class SynchronousTransport : public TransportAround {
 public:
  using TransportAround::TransportAround;

  EventPtr Post(const Transfer& transfer, std::span<const EventPtr> after) override {
    const EventPtr event = TransportAround::Post(transfer, after);
    if (transfer.send) event->Wait();
    return event;
  }
};

}  // namespace pipelag
