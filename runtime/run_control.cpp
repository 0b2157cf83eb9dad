#include "runtime/run_control.h"

#include <fmt/format.h>

namespace pipelag {

void RunControl::Stop(std::exception_ptr error) noexcept {
  const std::lock_guard lock(mutex_);
  if (!error_) error_ = std::move(error);
  stopped_.store(true, std::memory_order_release);
  stopping_.notify_all();
}

void RunControl::CheckRunning() const {
  if (stopped()) throw RunStopped();
}

std::exception_ptr RunControl::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

void RunControl::RethrowError() const {
  if (const std::exception_ptr first = error()) std::rethrow_exception(first);
}

bool RunControl::WaitUntilStopped(const std::stop_token& given_up) const {
  std::unique_lock lock(mutex_);
  return stopping_.wait(lock, given_up, [this] { return stopped(); });
}

std::string RunControl::TooLate(const std::string& who) const {
  return fmt::format("{}: nothing came within {}", who, FormatDuration(deadline_));
}

}  // namespace pipelag
