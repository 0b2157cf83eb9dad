// Something that will have happened: what Compute and Transport hand back, and what later work is
// told to come after. Opaque to the worker, shared by the two halves of a backend, so that on a
// device a dependency need not pass through the host.
#pragma once

#include <memory>

#include "models/units.h"

namespace pipelag {

/// From start to end of a piece of work, on the run's clock.
struct Interval {
  Nanoseconds start{0};
  Nanoseconds end{0};
};

class Event {
 public:
  virtual ~Event() = default;
  /// Never blocks.
  virtual bool Happened() const = 0;
  /// Blocks the calling thread until it has happened. Throws RunStopped when the run is stopped
  /// meanwhile, Error when the run's deadline for one wait passes, saying who waits for whom.
  virtual void Wait() const = 0;
  /// Only once Happened().
  virtual Interval When() const = 0;
};

using EventPtr = std::shared_ptr<const Event>;

}  // namespace pipelag
