// Ends a run that an error has stopped and that does not end by itself: a rank may be inside an
// action of minutes, which nothing can interrupt. Knows neither ranks nor where they run.
#pragma once

#include <exception>
#include <functional>
#include <thread>

#include "runtime/run_control.h"

namespace pipelag {

/// Beyond its life the run has ended by itself.
class OverdueWatch {
 public:
  using End = std::function<void(const std::exception_ptr& error)>;

  /// Borrows `control`. `end` is called by a thread of its own, once, with the error that stopped
  /// the run, if it lives a short while longer; it need not return. Empty: nobody watches. Having
  /// diverged is no error: what the run came to is still wanted.
  OverdueWatch(const RunControl& control, End end);

 private:
  std::jthread watching_;
};

}  // namespace pipelag
