// One block of memory for everything a rank keeps, mapped and touched once: page faults of big
// blocks that come and go would cost more than the computation (first touch: tens of ms per 10 MB).
#pragma once

#include <cstddef>

namespace pipelag {

class Arena {
 public:
  static constexpr size_t kAlignment = 64;

  /// Zero-filled. Throws Error if the memory cannot be had.
  explicit Arena(size_t bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// The next `bytes`, aligned. A broken promise (CHECK) beyond the size asked for.
  std::byte* Take(size_t bytes);

  static constexpr size_t Rounded(size_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

 private:
  std::byte* memory_ = nullptr;
  size_t size_ = 0;
  size_t taken_ = 0;
};

}  // namespace pipelag
