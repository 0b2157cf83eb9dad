// Events of work on devices: dependencies that never pass through the host. Knows neither what the
// work is nor which schedule wants it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/device/device_clock.h"
#include "runtime/event.h"

namespace pipelag {

/// A stream that takes the time of what it does. Copies are the same stream, which goes with the
/// last of them; borrows the clock.
class TimedStream {
 public:
  TimedStream(DeviceClock& clock, bool urgent) : state_(std::make_shared<State>(clock, urgent)) {}

  Stream get() const { return state_->stream.get(); }
  DeviceClock& clock() const { return state_->clock; }
  ComputeDevice& device() const { return state_->clock.device(); }

  /// What lies between two marks, after all that was asked for before: a stream does one thing at a
  /// time, though clocks are true to microseconds only.
  Interval Between(DeviceMark start, DeviceMark end) const;

 private:
  struct State {
    State(DeviceClock& of, bool urgent) : clock(of), stream(of.device(), urgent) {}

    DeviceClock& clock;
    OwnedStream stream;
    std::mutex mutex;
    Nanoseconds free{0};
  };

  std::shared_ptr<State> state_;
};

/// One piece of work on a stream, from its first mark to its last.
class Stretch {
 public:
  /// Everything given to the stream from now on until End belongs to it.
  explicit Stretch(const TimedStream& stream);
  ~Stretch();
  Stretch(const Stretch&) = delete;
  Stretch& operator=(const Stretch&) = delete;

  void End();
  bool Reached() const;
  /// Once Reached().
  Interval When() const;
  /// What is given to `stream`, of any device, from now on starts after it.
  void Precede(ComputeDevice& device, Stream stream) const;

 private:
  TimedStream stream_;
  DeviceMark start_;
  DeviceMark end_;
  mutable std::atomic<bool> reached_{false};
  mutable std::mutex mutex_;
  mutable std::optional<Interval> when_;
};

/// Has happened once its work is done. Two steps lead there: it is issued (enqueued on a stream),
/// by another rank's thread perhaps, and then the device comes to it. Whoever makes work of a
/// device come after it waits, on the host, for the first step at most.
///
/// That wait cannot deadlock. A host goes through the actions of its rank in the program's issue
/// order (program.h, law 6): one topological order for all ranks, in which a whole transfer is one
/// node. Suppose that all hosts wait, and take the earliest action in that order that is not
/// issued. It waits for transfers of messages that it consumes, whose producers come before it and
/// so are issued, and with them their sends; and for a message buffer to be sent from, whose last
/// message has been received because, with the slots that can never delay (slots.h), the consumer
/// of the message that had the receiver's slot before comes before the producer of this one.
/// Receives are posted right after the action that frees their slot, sends right after the one that
/// makes them. Or it waits for collectives, which are one node each and come before it on every
/// member. So nothing that it waits for is left to be issued. What is issued is done: a stream
/// waits for marks that have been recorded only.
class DeviceEvent : public Event {
 public:
  /// Not yet issued. `waiting`: the sentence of whoever waits for it: "rank 1 waits for …".
  DeviceEvent(const RunControl& control, std::string waiting)
      : control_(control), waiting_(std::move(waiting)) {}

  /// Once. `after`: what the work waits for, looked at if it takes too long. `settle` is called
  /// once, by the first Wait, after it has happened: to hand results of the device to the host.
  /// What it throws, Wait throws.
  void Issue(std::shared_ptr<const Stretch> stretch, std::vector<EventPtr> after,
             std::function<void()> settle = {}) const;

  bool Happened() const override;
  void Wait() const override;
  Interval When() const override;

  /// Waits until it is issued; throws as Wait does.
  void WaitUntilIssued() const;
  /// What `stream` is given from now on starts after it.
  void Precede(ComputeDevice& device, Stream stream) const;

 private:
  std::shared_ptr<const Stretch> Issued() const;
  void Settle() const;
  std::string WaitingFor() const;

  const RunControl& control_;
  std::string waiting_;
  mutable std::mutex mutex_;
  mutable std::condition_variable issued_;
  mutable std::shared_ptr<const Stretch> stretch_;
  mutable std::vector<EventPtr> after_;
  mutable std::function<void()> settle_;
};

/// What `stream` is given from now on starts after `event`: of a device by a mark, of anything else
/// by waiting on the host.
void MakeFollow(ComputeDevice& device, Stream stream, const EventPtr& event);

}  // namespace pipelag
