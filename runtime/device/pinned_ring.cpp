#include "runtime/device/pinned_ring.h"

namespace pipelag {

PinnedRing::PinnedRing(ComputeDevice& device, size_t slots, size_t bytes)
    : device_(device),
      stride_((bytes + 7) / 8 * 8),
      memory_(static_cast<std::byte*>(device.AllocatePinned(slots * stride_))),
      uses_(slots) {}

PinnedRing::~PinnedRing() { device_.FreePinned(memory_); }

size_t PinnedRing::Next() {
  const size_t slot = next_;
  next_ = (next_ + 1) % uses_.size();
  if (uses_[slot]) uses_[slot]->Wait();
  uses_[slot] = nullptr;
  return slot;
}

}  // namespace pipelag
