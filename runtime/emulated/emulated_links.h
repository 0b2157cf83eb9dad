// Links that take the time they are given, around any transport that really moves the bytes. Knows
// no network of computers: every lane has a wire of its own.
#pragma once

#include <memory>

#include "runtime/transport.h"

namespace pipelag {

/// What all ranks of a run share. Outlives its ends and their events. A message starts when it is
/// produced and the one before it on its lane is sent, takes `message` to be sent and `latency`
/// more to be delivered; it has happened once its bytes are there, which may be before that: who
/// takes it must not start before When().end. A reduction of gradients likewise starts when all its
/// members are ready and their reductions before it have ended.
class EmulatedLinks {
 public:
  struct Times {
    Nanoseconds message{0};
    Nanoseconds latency{0};
    Nanoseconds reduction{0};
  };
  EmulatedLinks(size_t lanes, size_t groups, const Times& times);
  ~EmulatedLinks();
  EmulatedLinks(const EmulatedLinks&) = delete;
  EmulatedLinks& operator=(const EmulatedLinks&) = delete;

  /// Over one rank's end of the transport below, which is borrowed.
  std::unique_ptr<Transport> End(Transport& inner);

  struct State;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace pipelag
