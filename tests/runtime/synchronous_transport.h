// A transport whose sends return only when they have been received, around any other: what buffers
// would hide, hangs here.
#pragma once

#include "runtime/transport.h"

namespace pipelag {

class SynchronousTransport : public Transport {
 public:
  explicit SynchronousTransport(Transport& inner) : inner_(inner) {}

  EventPtr Post(const Transfer& transfer, std::span<const EventPtr> after) override {
    const EventPtr event = inner_.Post(transfer, after);
    if (transfer.send) event->Wait();
    return event;
  }
  EventPtr PostGradientSum(int group, const std::vector<GradientPart>& parts,
                           std::span<const EventPtr> after) override {
    return inner_.PostGradientSum(group, parts, after);
  }
  EventPtr PostAllReduce(int group, std::span<double> values,
                         std::span<const EventPtr> after) override {
    return inner_.PostAllReduce(group, values, after);
  }

 private:
  Transport& inner_;
};

}  // namespace pipelag
