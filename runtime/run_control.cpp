#include "runtime/run_control.h"

#include <fmt/format.h>

namespace pipelag {

void RunControl::Stop(std::exception_ptr error) noexcept {
  const std::lock_guard lock(mutex_);
  if (!error_) error_ = std::move(error);
  stopped_.store(true, std::memory_order_release);
}

void RunControl::CheckRunning() const {
  if (stopped()) throw RunStopped();
}

void RunControl::RethrowError() const {
  std::exception_ptr error;
  {
    const std::lock_guard lock(mutex_);
    error = error_;
  }
  if (error) std::rethrow_exception(error);
}

std::string RunControl::TooLate(const std::string& who) const {
  return fmt::format("{}: nothing came within {}", who, FormatDuration(deadline_));
}

}  // namespace pipelag
