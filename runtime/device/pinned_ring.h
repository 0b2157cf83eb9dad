// Places in pinned memory that host and device hand each other in turn: tokens on their way to the
// device, losses and norms on their way back. Knows not what lies in them.
#pragma once

#include <cstddef>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/event.h"

namespace pipelag {

/// Used by one thread. The device outlives it, and what was given to it has been done before it
/// goes.
class PinnedRing {
 public:
  /// `slots` places of `bytes` each, 8-byte aligned.
  PinnedRing(ComputeDevice& device, size_t slots, size_t bytes);
  ~PinnedRing();
  PinnedRing(const PinnedRing&) = delete;
  PinnedRing& operator=(const PinnedRing&) = delete;

  /// The place that was used longest ago, once that use has happened; may wait for it.
  size_t Next();
  std::byte* At(size_t slot) const { return memory_ + slot * stride_; }
  void UsedUntil(size_t slot, EventPtr event) { uses_[slot] = std::move(event); }

 private:
  ComputeDevice& device_;
  size_t stride_;
  std::byte* memory_;
  std::vector<EventPtr> uses_;
  size_t next_ = 0;
};

}  // namespace pipelag
