// What the threads of one run share: its clock, its first error, and waits that end when either the
// thing waited for comes, the run is stopped, or the deadline passes.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>

#include "models/error.h"
#include "models/units.h"

namespace pipelag {

/// Thrown out of waits of a run that another rank has stopped. Carries no message: the first error
/// does.
class RunStopped : public std::exception {
 public:
  const char* what() const noexcept override { return "the run was stopped"; }
};

class RunControl {
 public:
  /// `deadline`: the longest that one wait may take.
  explicit RunControl(Nanoseconds deadline)
      : start_(std::chrono::steady_clock::now()), deadline_(deadline) {}
  RunControl(const RunControl&) = delete;
  RunControl& operator=(const RunControl&) = delete;

  /// Since the run's start.
  Nanoseconds Now() const {
    return std::chrono::duration_cast<Nanoseconds>(std::chrono::steady_clock::now() - start_);
  }

  /// Stops every wait. The first error is kept; RunStopped is not an error.
  void Stop(std::exception_ptr error) noexcept;
  bool stopped() const { return stopped_.load(std::memory_order_acquire); }
  /// Throws RunStopped if the run is stopped.
  void CheckRunning() const;
  /// Whether the deadline of a wait that began at `since` has passed.
  bool TooLong(Nanoseconds since) const { return Now() - since >= deadline_; }
  /// Throws Error, as Wait does, if it has.
  void CheckDeadline(Nanoseconds since, const std::string& who) const {
    if (TooLong(since)) throw Error(TooLate(who));
  }
  /// The first error; null if there was none.
  std::exception_ptr error() const;
  /// Rethrows it, if there was one.
  void RethrowError() const;
  /// Waits for a stop. False if `given_up` comes first.
  bool WaitUntilStopped(const std::stop_token& given_up) const;

  /// How long a wait looks before it sleeps. A wake-up costs about 100 us a hop in a
  /// virtual machine (looking: 10 us), so it pays while every thread has a core of its own, and
  /// only then.
  void set_patience(Nanoseconds patience) { patience_ = patience; }

  /// Looks for `ready()` as long as the patience lasts, without a lock. True if it came.
  template <class Ready>
  bool Look(Ready ready) const {
    if (patience_.count() == 0) return ready();
    const auto end = std::chrono::steady_clock::now() + std::min(patience_, deadline_);
    for (int i = 0;; ++i) {
      if (ready()) return true;
      if (i % 64 != 0) continue;
      std::this_thread::yield();  // whoever else wants the core may have it
      CheckRunning();
      if (std::chrono::steady_clock::now() >= end) return false;
    }
  }

  /// Waits, with `lock` held on entry and return, until `ready()`. Throws RunStopped, or after the
  /// deadline Error with `who()`, a sentence such as "rank 1 waits for …".
  template <class Ready, class Who>
  void Wait(std::unique_lock<std::mutex>& lock, std::condition_variable& changed, Ready ready,
            Who who) const {
    const auto end = std::chrono::steady_clock::now() + deadline_;
    while (!ready()) {
      CheckRunning();
      if (std::chrono::steady_clock::now() >= end) throw Error(TooLate(who()));
      // A stop does not know whom to notify, so everyone looks up now and then.
      changed.wait_for(lock, kLookUp);
    }
  }

 private:
  static constexpr std::chrono::milliseconds kLookUp{20};

  std::string TooLate(const std::string& who) const;

  std::chrono::steady_clock::time_point start_;
  Nanoseconds deadline_;
  Nanoseconds patience_{0};
  std::atomic<bool> stopped_{false};
  mutable std::mutex mutex_;
  mutable std::condition_variable_any stopping_;
  std::exception_ptr error_;
};

}  // namespace pipelag
