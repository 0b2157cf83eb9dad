// A thread of a block as a function that can stop in the middle, on a stack of its own. Knows
// nothing of kernels.
#pragma once

#include <cstddef>
#include <exception>

namespace pipelag::cuda::emulator {

/// Runs a body on its own stack within the calling thread; that thread alone may use it.
class Fibre {
 public:
  Fibre();
  ~Fibre();
  Fibre(const Fibre&) = delete;
  Fibre& operator=(const Fibre&) = delete;

  /// Prepares to run body(argument) from its beginning; an unfinished body is forgotten.
  void Start(void (*body)(void*), void* argument);

  /// Goes on until the body suspends or ends. What it throws is thrown here.
  void Resume();

  /// Called by the running body only: back to Resume.
  void Suspend();

  bool ended() const { return ended_; }

 private:
  struct Sanitizers;

  static void Enter();
  void SwitchTo();
  void SwitchBack();

  void (*body_)(void*) = nullptr;
  void* argument_ = nullptr;
  bool ended_ = true;
  std::exception_ptr error_;
  std::byte* memory_;  ///< a guard page, then the stack
  void* own_ = nullptr;
  void* caller_ = nullptr;
  Sanitizers* sanitizers_;
};

}  // namespace pipelag::cuda::emulator
