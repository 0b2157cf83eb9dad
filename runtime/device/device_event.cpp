#include "runtime/device/device_event.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace pipelag {
namespace {

/// Between the looks of a host that has waited for longer than its patience.
constexpr std::chrono::microseconds kNap{20};

}  // namespace

Interval TimedStream::Between(DeviceMark start, DeviceMark end) const {
  const Nanoseconds from = clock().TimeOf(start);
  const Nanoseconds to = clock().TimeOf(end);
  const std::lock_guard lock(state_->mutex);
  const Interval when{std::max(from, state_->free), std::max({from, to, state_->free})};
  state_->free = when.end;
  return when;
}

Stretch::Stretch(const TimedStream& stream)
    : stream_(stream), start_(stream.clock().TakeMark()), end_(stream.clock().TakeMark()) {
  stream_.device().Record(start_, stream_.get());
}

Stretch::~Stretch() {
  stream_.clock().GiveBack(start_);
  stream_.clock().GiveBack(end_);
}

void Stretch::End() { stream_.device().Record(end_, stream_.get()); }

bool Stretch::Reached() const {
  if (reached_.load(std::memory_order_acquire)) return true;
  if (!stream_.device().Reached(end_)) return false;
  reached_.store(true, std::memory_order_release);
  return true;
}

Interval Stretch::When() const {
  const std::lock_guard lock(mutex_);
  if (!when_) when_ = stream_.Between(start_, end_);
  return *when_;
}

void Stretch::Precede(ComputeDevice& device, Stream stream) const {
  if (stream == stream_.get() || reached_.load(std::memory_order_acquire)) return;
  device.WaitFor(stream, end_);
}

void DeviceEvent::Issue(std::shared_ptr<const Stretch> stretch, std::vector<EventPtr> after,
                        std::function<void()> settle) const {
  {
    const std::lock_guard lock(mutex_);
    CHECK(stretch_ == nullptr);
    stretch_ = std::move(stretch);
    after_ = std::move(after);
    settle_ = std::move(settle);
  }
  issued_.notify_all();
}

std::shared_ptr<const Stretch> DeviceEvent::Issued() const {
  const std::lock_guard lock(mutex_);
  return stretch_;
}

bool DeviceEvent::Happened() const {
  const auto stretch = Issued();
  return stretch != nullptr && stretch->Reached();
}

void DeviceEvent::WaitUntilIssued() const {
  std::unique_lock lock(mutex_);
  control_.Wait(
      lock, issued_, [&] { return stretch_ != nullptr; }, [&] { return waiting_; });
}

void DeviceEvent::Wait() const {
  WaitUntilIssued();
  const auto stretch = Issued();
  if (!control_.Look([&] { return stretch->Reached(); })) {
    for (const Nanoseconds since = control_.Now(); !stretch->Reached();) {
      control_.CheckRunning();
      if (control_.TooLong(since)) control_.CheckDeadline(since, WaitingFor());
      std::this_thread::sleep_for(kNap);
    }
  }
  control_.CheckRunning();  // work that was aborted has come to its end, too
  Settle();
}

/// Lets go of what it came after, or every event would keep all before it.
void DeviceEvent::Settle() const {
  std::vector<EventPtr> after;
  std::function<void()> settle;
  {
    const std::lock_guard lock(mutex_);
    after.swap(after_);
    settle.swap(settle_);
  }
  if (settle) settle();
}

Interval DeviceEvent::When() const {
  const auto stretch = Issued();
  CHECK(stretch != nullptr && stretch->Reached());
  return stretch->When();
}

void DeviceEvent::Precede(ComputeDevice& device, Stream stream) const {
  WaitUntilIssued();
  Issued()->Precede(device, stream);
}

/// The sentence of what really holds it up: the first thing that it comes after and that has not
/// happened, if there is any.
std::string DeviceEvent::WaitingFor() const {
  std::vector<EventPtr> after;
  {
    const std::lock_guard lock(mutex_);
    after = after_;
  }
  for (const EventPtr& event : after) {
    const auto* of_device = dynamic_cast<const DeviceEvent*>(event.get());
    if (of_device != nullptr && !of_device->Happened()) return of_device->WaitingFor();
  }
  return waiting_;
}

void MakeFollow(ComputeDevice& device, Stream stream, const EventPtr& event) {
  if (const auto* of_device = dynamic_cast<const DeviceEvent*>(event.get())) {
    of_device->Precede(device, stream);
  } else {
    event->Wait();
  }
}

}  // namespace pipelag
