// A Transport around another, of which a test changes what it is about.
#pragma once

#include "runtime/transport.h"

namespace pipelag {

/// Borrows the inner one.
class TransportAround : public Transport {
 public:
  explicit TransportAround(Transport& inner) : inner_(inner) {}
  void Open() override { inner_.Open(); }
  void Close() override { inner_.Close(); }
  EventPtr Post(const Transfer& transfer, std::span<const EventPtr> after) override {
    return inner_.Post(transfer, after);
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
