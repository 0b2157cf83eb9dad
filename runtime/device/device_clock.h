// When marks of a device were reached, on the clock of the run; and marks to be had without making
// new ones each time. Knows no events.
#pragma once

#include <mutex>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/run_control.h"

namespace pipelag {

/// Used by several threads at once. The device and the control outlive it.
class DeviceClock {
 public:
  DeviceClock(ComputeDevice& device, const RunControl& control);
  ~DeviceClock();
  DeviceClock(const DeviceClock&) = delete;
  DeviceClock& operator=(const DeviceClock&) = delete;

  ComputeDevice& device() const { return device_; }
  const RunControl& control() const { return control_; }

  /// Of a mark that has been reached; true to some microseconds.
  Nanoseconds TimeOf(DeviceMark mark);

  /// Makes so many marks more, beside what there is: later they are to be had at once.
  void Reserve(int marks);
  DeviceMark TakeMark();
  void GiveBack(DeviceMark mark) noexcept;

 private:
  void Anchor();

  ComputeDevice& device_;
  const RunControl& control_;
  OwnedStream idle_;  // nothing ever stands before the anchor
  std::mutex mutex_;
  std::vector<DeviceMark> free_;
  std::vector<DeviceMark> looks_;  // for the next anchor
  DeviceMark anchor_;
  Nanoseconds anchored_{0};
};

}  // namespace pipelag
