// The same work for many indices, on several threads. Knows nothing of what is done, nor of order.
#pragma once

#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace pipelag {

/// work(i) for every i below `count`, on at most `threads` threads at once. What the first to fail
/// throws is thrown again when all have stopped; nothing new is begun after it.
template <class Work>
void ForEachInParallel(size_t count, int threads, const Work& work) {
  std::atomic<size_t> next{0};
  std::exception_ptr failure;
  std::mutex mutex;
  const auto run = [&] {
    for (size_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
        next = count;
      }
    }
  };
  std::vector<std::jthread> others;
  for (int thread = 1; thread < threads && static_cast<size_t>(thread) < count; ++thread) {
    others.emplace_back(run);
  }
  run();
  others.clear();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace pipelag
