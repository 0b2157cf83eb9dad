#include "runtime/overdue.h"

#include <condition_variable>
#include <mutex>
#include <utility>

#include "runtime/training.h"

namespace pipelag {
namespace {

/// Waits end within milliseconds and so do most actions; mpirun kills whoever is there a second
/// after it has told it to end.
constexpr std::chrono::milliseconds kGrace{500};

bool IsDivergence(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Diverged&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace

OverdueWatch::OverdueWatch(const RunControl& control, End end) {
  if (!end) return;
  watching_ = std::jthread([&control, end = std::move(end)](const std::stop_token& ended) {
    if (!control.WaitUntilStopped(ended) || IsDivergence(control.error())) return;
    std::mutex mutex;
    std::unique_lock lock(mutex);
    std::condition_variable_any never;
    never.wait_for(lock, ended, kGrace, [] { return false; });
    if (!ended.stop_requested()) end(control.error());
  });
}

}  // namespace pipelag
