// The wire of one process as a run uses it: messages that become events, moved on while the rank
// computes, and waits that end when the run does. Knows no schedule.
#pragma once

#include <functional>
#include <list>
#include <memory>
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
  /// What messages call a rank.
  using Names = std::function<std::string(int rank)>;
  /// Borrows both, which outlive the link and its events. Without names "rank 0", "rank 1", ….
  ProcessLink(Wire& wire, RunControl& control, Names names = {});
  ~ProcessLink();
  /// Nothing is moved any more: before buffers go that messages under way were to fill.
  void Close();
  ProcessLink(const ProcessLink&) = delete;
  ProcessLink& operator=(const ProcessLink&) = delete;

  int rank() const { return wire_.rank(); }
  int size() const { return wire_.size(); }
  std::string NameOf(int rank) const;
  RunControl& control() { return control_; }

  /// `waiting`: the sentence of whoever waits for it, such as "rank 0 waits for rank 1 to …". The
  /// bytes must be there until the message is done or the link closed, which an error may put off
  /// beyond the end of the caller: `owner`, if any, is kept as long.
  EventPtr Send(int peer, int tag, std::span<const std::byte> bytes, std::string waiting,
                std::shared_ptr<const void> owner = nullptr);
  /// To whoever may be gone, which is no error then, and nothing more to wait for.
  EventPtr SendIfThere(int peer, int tag, std::span<const std::byte> bytes, std::string waiting);
  EventPtr Receive(int peer, int tag, std::span<std::byte> bytes, std::string waiting,
                   std::shared_ptr<const void> owner = nullptr);

  /// A collective: `advance` is called now and then, by any thread but one at a time, until it
  /// returns true; it may use the wire given. An Error that it throws ends the run.
  using Advance = std::function<bool(Wire&)>;
  EventPtr Begin(Advance advance, std::string waiting);

  /// What the rank is at from now on, such as "rank 0 at 0F3": in front of what it then fails by.
  void SetPlace(std::string place);
  /// That, or "" where it is at nothing.
  std::string Place() const;
  /// What the rank waits for at the moment, or "" if it computes.
  std::string Waiting() const;

 private:
  friend class WireEvent;

  struct Pending {
    Advance advance;
    std::shared_ptr<WireEvent> event;
  };

  void Progress();
  std::exception_ptr MoveOn();  // a failure, if there is any
  void WaitFor(const WireEvent& event);

  Wire& wire_;
  RunControl& control_;
  Names names_;
  mutable std::mutex mutex_;  // of the wire and of all below
  std::list<Pending> pending_;
  mutable std::mutex doing_mutex_;
  std::string place_;
  std::string waiting_;
  std::jthread ticking_;
};

}  // namespace pipelag
