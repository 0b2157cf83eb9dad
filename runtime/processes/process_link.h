// The wire of one process as a run uses it: messages that become events, moved on while the rank
// computes, and waits that end when the run does. Knows no schedule.
#pragma once

#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <thread>

#include "runtime/event.h"
#include "runtime/processes/wire.h"
#include "runtime/run_control.h"

namespace pipelag {

/// Happens when a message, or a collective made of messages, is done.
class WireEvent;

/// A rank that waits moves its messages itself; while it computes, a thread looks after them every
/// kTick. With that, rather than with progress at action boundaries alone, a large message is under
/// way during the next action, as the schedules want it.
class ProcessLink {
 public:
  /// Borrows both, which outlive the link and its events.
  ProcessLink(Wire& wire, RunControl& control);
  ~ProcessLink();
  ProcessLink(const ProcessLink&) = delete;
  ProcessLink& operator=(const ProcessLink&) = delete;

  Wire& wire() { return wire_; }
  RunControl& control() { return control_; }

  /// `waiting`: the sentence of whoever waits for it, such as "rank 0 waits for rank 1 to …".
  EventPtr Send(int peer, int tag, std::span<const std::byte> bytes, std::string waiting);
  EventPtr Receive(int peer, int tag, std::span<std::byte> bytes, std::string waiting);

  /// A collective: `advance` is called now and then, by any thread but one at a time, until it
  /// returns true; it may use the wire given. An Error that it throws ends the run.
  using Advance = std::function<bool(Wire&)>;
  EventPtr Begin(Advance advance, std::string waiting);

  /// What the rank waits for at the moment, or "" if it computes.
  std::string Waiting() const;

 private:
  friend class WireEvent;

  struct Pending {
    Advance advance;
    std::shared_ptr<WireEvent> event;
  };

  void Progress();
  std::exception_ptr MoveOn();  // the first failure, if any
  void WaitFor(const WireEvent& event);

  Wire& wire_;
  RunControl& control_;
  mutable std::mutex mutex_;  // of the wire and of all below
  std::list<Pending> pending_;
  mutable std::mutex waiting_mutex_;
  std::string waiting_;
  std::jthread ticking_;  // last, so that it ends first
};

}  // namespace pipelag
