// What becomes of this process when it is told to end by SIGTERM, SIGINT or SIGHUP. Knows nothing
// of what it does meanwhile.
#pragma once

#include <signal.h>

#include <cstdint>
#include <functional>
#include <list>
#include <string>
#include <thread>

namespace pipelag {

/// One per process, made before any other thread is, which would not inherit that the signals are
/// blocked; one thread waits for them. No handler may run where ranks compute: oneDNN's kernels
/// move the stack pointer into blocks of the heap, where a handler's frame overwrites what lies
/// below. Without an OnTermination a signal ends the process as ever, but no file is left half
/// written. A signal that is ignored from the start, as under nohup, stays so.
class TerminationSignals {
 public:
  TerminationSignals();
  ~TerminationSignals();
  TerminationSignals(const TerminationSignals&) = delete;
  TerminationSignals& operator=(const TerminationSignals&) = delete;

 private:
  sigset_t before_;
  std::jthread answering_;
};

/// While there are any, they are called instead, by a thread that has nothing else to do, with the
/// signal's name ("SIGTERM"). They are to end what goes on and must not throw.
class OnTermination {
 public:
  using Reaction = std::function<void(const std::string& signal)>;
  /// kOtherwise: of what stands around those that are called; only while there are none.
  enum class When : uint8_t { kAlways, kOtherwise };
  explicit OnTermination(Reaction reaction, When when = When::kAlways);
  ~OnTermination();
  OnTermination(const OnTermination&) = delete;
  OnTermination& operator=(const OnTermination&) = delete;

 private:
  When when_;
  std::list<Reaction>::iterator place_;
};

}  // namespace pipelag
