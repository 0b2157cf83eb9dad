// What has happened by the time it is known of: the events of backends that do things at once.
#pragma once

#include "runtime/event.h"

namespace pipelag {

class PastEvent : public Event {
 public:
  explicit PastEvent(Interval when) : when_(when) {}
  bool Happened() const override { return true; }
  void Wait() const override {}
  Interval When() const override { return when_; }

 private:
  Interval when_;
};

}  // namespace pipelag
