// Runs kernels on the CPU, so that they are tested where no device is. To be included before a
// kernel's own file (the build does so for every .cu): defines the words of the kernel language and
// the instructions of runtime/cuda/kernels/instructions.cuh.
//
// Blocks run one after the other. Threads of a block are fibres that go on until they meet a
// barrier or a function of their warp, in one of several orders: a kernel that lacks a barrier
// yields different results in two of them. Dynamic shared memory begins as NaNs and has exactly the
// size asked for; asynchronous copies arrive when they are waited for, not before. A block whose
// threads wait for ones that have ended, or whose lanes call different functions, throws
// InternalError.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>

#define PIPELAG_KERNEL_EMULATOR

// NOLINTBEGIN(bugprone-reserved-identifier): the language's own.
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
// Blocks run one at a time on a thread, so that all of them can use one place.
#define __shared__ static thread_local
#define threadIdx (::pipelag::cuda::emulator::ThreadIndex())
#define blockIdx (::pipelag::cuda::emulator::BlockIndex())
#define gridDim (::pipelag::cuda::emulator::GridSize())
// NOLINTEND(bugprone-reserved-identifier)

namespace pipelag::cuda::emulator {

struct Index {
  unsigned x = 0;
  unsigned y = 0;
  unsigned z = 0;
};

Index ThreadIndex();
Index BlockIndex();
Index GridSize();

struct Extent {
  int64_t x;
  int64_t y;
  int64_t z;
};

/// Runs thread() for each thread of each block before it returns; `stream` orders nothing then.
void Run(void* stream, Extent grid, int threads, size_t shared_bytes,
         const std::function<void()>& thread);

enum class Order { kAscending, kDescending, kShuffled };

/// The order of threads, and of blocks, on this thread while it lives.
class ThreadOrder {
 public:
  explicit ThreadOrder(Order order);
  ~ThreadOrder();
  ThreadOrder(const ThreadOrder&) = delete;
  ThreadOrder& operator=(const ThreadOrder&) = delete;

 private:
  Order before_;
};

/// What the whole warp does together: `combine` makes the 32 outputs of the 32 inputs, which lie
/// one behind the other. At most kMostExchanged bytes each way per lane.
using Combine = void (*)(const std::byte* inputs, std::byte* outputs);
constexpr size_t kMostExchanged = 64;
void Exchange(const void* input, size_t input_bytes, void* output, size_t output_bytes,
              Combine combine);

void WaitForBlock();
void* SharedMemory();
size_t SharedBytes();
void StartCopy(void* to, const void* from, size_t bytes, bool valid);
void FinishCopies();

}  // namespace pipelag::cuda::emulator

#include "tests/runtime/cuda/emulator/instructions.h"
