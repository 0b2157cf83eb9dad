#include "runtime/cpu/arena.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "models/error.h"
#include "models/units.h"

namespace pipelag {

Arena::Arena(size_t bytes) {
  constexpr size_t kPage = size_t{4} << 10;
  constexpr size_t kHugePage = size_t{2} << 20;
  const size_t page = bytes < kHugePage ? kPage : kHugePage;
  size_ = (bytes + page - 1) / page * page;
  if (size_ == 0) return;
  void* memory = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    throw Error(fmt::format("{} of memory for a rank cannot be had: {}",
                            FormatBytes(static_cast<Bytes>(size_)), std::strerror(errno)));
  }
  memory_ = static_cast<std::byte*>(memory);
  // Advice only: where huge pages are off, ordinary ones do.
  if (page == kHugePage) static_cast<void>(madvise(memory_, size_, MADV_HUGEPAGE));
  std::memset(memory_, 0, size_);
}

Arena::~Arena() {
  if (memory_ != nullptr) munmap(memory_, size_);
}

std::byte* Arena::Take(size_t bytes) {
  const size_t rounded = Rounded(bytes);
  CHECK(rounded <= size_ - taken_);
  std::byte* result = memory_ + taken_;
  taken_ += rounded;
  return result;
}

}  // namespace pipelag
