#include "runtime/device/device_clock.h"

#include <algorithm>
#include <thread>

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
  const std::lock_guard lock(mutex_);
  Anchor();
}

DeviceClock::~DeviceClock() {
  for (const DeviceMark mark : free_) device_.FreeMark(mark);
  device_.FreeMark(anchor_);
}

void DeviceClock::Anchor() {
  const DeviceMark base = device_.NewMark();
  Nanoseconds quickest = Nanoseconds::max();
  DeviceMark best = nullptr;
  std::vector<DeviceMark> tried;
  for (int i = 0; i < kLooks; ++i) {
    tried.push_back(i == 0 ? base : device_.NewMark());
    const Nanoseconds before = control_.Now();
    device_.Record(tried.back(), idle_.get());
    while (!device_.Reached(tried.back())) {
      control_.CheckDeadline(before, "the run waits for an idle stream of " + device_.name());
      std::this_thread::yield();
    }
    const Nanoseconds after = control_.Now();
    if (after - before >= quickest) continue;
    quickest = after - before;
    best = tried.back();
    anchored_ = before + (after - before) / 2;
  }
  std::swap(anchor_, *std::find(tried.begin(), tried.end(), best));
  for (const DeviceMark mark : tried) device_.FreeMark(mark);
}

Nanoseconds DeviceClock::TimeOf(DeviceMark mark) {
  const std::lock_guard lock(mutex_);
  if (control_.Now() - anchored_ > kAnchorHolds) Anchor();
  return anchored_ + device_.Between(anchor_, mark);
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
