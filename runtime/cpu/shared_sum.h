// A sum of gradients that several threads have, added up by them together in their shared memory.
// Knows no ranks and no schedule.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "runtime/event.h"
#include "runtime/run_control.h"

namespace pipelag {

/// There is no thread for it: once all summands are there, whoever looks whether it has happened or
/// waits for it takes one block after the other until none is left, so that members that come to
/// their updates together share the work. Which of them adds a block changes no bit of it.
class SharedSum : public std::enable_shared_from_this<SharedSum> {
 public:
  /// `summands` will be added as summation.h says, every `together` first. `control` is borrowed.
  SharedSum(const RunControl& control, size_t summands, size_t together)
      : control_(control), expected_(summands), together_(together) {}

  /// Ascending `place` is the order of summation. True with the last one. `squared_norm`, unless
  /// null, receives that of the sum before the sum has happened.
  bool Contribute(int place, std::span<float> values, double* squared_norm);
  /// Of one member: happens when every summand has become the sum. Says when that was done, from
  /// the first block on. `waiting`: the sentence of whoever waits for it.
  EventPtr EventOf(std::string waiting);

 private:
  friend class SharedSumEvent;
  struct Part {
    int place = 0;
    std::span<float> values;
    double* squared_norm = nullptr;
  };

  void Await(const std::string& waiting);
  void AwaitFlag(const std::atomic<bool>& flag, const std::string& waiting);
  void Work();
  void AddBlock(size_t block);
  void TakeNorm() const;

  const RunControl& control_;
  size_t expected_;
  size_t together_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Part> parts_;  // fixed once complete
  size_t blocks_ = 1;
  std::atomic<bool> complete_{false};
  std::atomic<size_t> next_block_{0};
  std::atomic<size_t> blocks_done_{0};
  Interval when_;
  std::atomic<bool> happened_{false};
};

}  // namespace pipelag
