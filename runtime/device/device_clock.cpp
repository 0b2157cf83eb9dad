#include "runtime/device/device_clock.h"

#include <thread>
#include <utility>

namespace pipelag {
namespace {

/// Devices tell the time between two marks in floats of milliseconds: a microsecond in 8 s. The
/// clocks of host and device may also drift apart.
constexpr Nanoseconds kAnchorHolds = std::chrono::seconds(4);
/// The quickest of so many looks counts: it says best when the mark was reached.
constexpr int kLooks = 5;

}  // namespace

DeviceClock::DeviceClock(ComputeDevice& device, const RunControl& control)
    : device_(device), control_(control), idle_(device, true), anchor_(device.NewMark()) {
  for (int i = 0; i < kLooks; ++i) looks_.push_back(device.NewMark());
  const std::lock_guard lock(mutex_);
  Anchor();
}

DeviceClock::~DeviceClock() {
  for (const DeviceMark mark : free_) device_.FreeMark(mark);
  for (const DeviceMark mark : looks_) device_.FreeMark(mark);
  device_.FreeMark(anchor_);
}

void DeviceClock::Anchor() {
  Nanoseconds quickest = Nanoseconds::max();
  DeviceMark* best = nullptr;
  for (DeviceMark& look : looks_) {
    const Nanoseconds before = control_.Now();
    device_.Record(look, idle_.get());
    while (!device_.Reached(look)) {
      control_.CheckDeadline(before, "the run waits for an idle stream of " + device_.name());
      std::this_thread::yield();
    }
    const Nanoseconds after = control_.Now();
    if (after - before >= quickest) continue;
    quickest = after - before;
    best = &look;
    anchored_ = before + (after - before) / 2;
  }
  std::swap(anchor_, *best);
}

Nanoseconds DeviceClock::TimeOf(DeviceMark mark) {
  const std::lock_guard lock(mutex_);
  if (control_.Now() - anchored_ > kAnchorHolds) Anchor();
  return anchored_ + device_.Between(anchor_, mark);
}

void DeviceClock::Reserve(int marks) {
  const std::lock_guard lock(mutex_);
  for (int i = 0; i < marks; ++i) free_.push_back(device_.NewMark());
}

DeviceMark DeviceClock::TakeMark() {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) return device_.NewMark();
  const DeviceMark mark = free_.back();
  free_.pop_back();
  return mark;
}

void DeviceClock::GiveBack(DeviceMark mark) noexcept {
  const std::lock_guard lock(mutex_);
  free_.push_back(mark);
}

}  // namespace pipelag
