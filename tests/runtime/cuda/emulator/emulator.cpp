#include "tests/runtime/cuda/emulator/emulator.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <numeric>
#include <string>
#include <vector>

#include "models/error.h"
#include "models/random.h"
#include "tests/runtime/cuda/emulator/fibre.h"

namespace pipelag::cuda::emulator {
namespace {

constexpr size_t kLanes = 32;

struct Copy {
  void* to;
  const void* from;
  size_t bytes;
};

struct Thread {
  Fibre fibre;
  Index index;
  const uint64_t* counter = nullptr;  ///< waits until it exceeds `seen`; null: does not wait
  uint64_t seen = 0;
  std::vector<Copy> copies;

  bool CanGoOn() const { return !fibre.ended() && (counter == nullptr || *counter > seen); }
};

struct Warp {
  uint64_t exchanges = 0;
  size_t arrived = 0;
  Combine combine = nullptr;
  std::byte inputs[kLanes * kMostExchanged];
  /// A lane may be an exchange ahead of one that has not read its output yet.
  std::byte outputs[2][kLanes * kMostExchanged];
};

struct AlignedDelete {
  void operator()(std::byte* memory) const { operator delete[](memory, std::align_val_t{1024}); }
};

/// The block that this thread runs.
struct Block {
  Index grid;
  Index index;
  const std::function<void()>* body = nullptr;
  std::unique_ptr<std::byte[], AlignedDelete> shared;
  size_t shared_bytes = 0;
  std::vector<std::unique_ptr<Thread>> threads;  ///< kept for the next launch
  std::vector<Warp> warps;
  std::vector<size_t> order;  ///< of warps' threads, warp by warp
  size_t count = 0;
  size_t at_barrier = 0;
  uint64_t barriers = 0;
  Thread* running = nullptr;
};

thread_local Block block;
thread_local Order current_order = Order::kAscending;

std::vector<size_t> Ordered(size_t count, uint64_t seed) {
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  if (current_order == Order::kDescending) std::reverse(order.begin(), order.end());
  if (current_order == Order::kShuffled) {
    for (size_t i = count; i > 1; --i) {
      std::swap(order[i - 1], order[UniformBelow(RandomBits(seed, i), i)]);
    }
  }
  return order;
}

void Wait(const uint64_t& counter, uint64_t seen) {
  Thread& self = *block.running;
  self.counter = &counter;
  self.seen = seen;
  self.fibre.Suspend();
  self.counter = nullptr;
}

void RunThread(void* /*argument*/) {
  (*block.body)();
  CHECK(block.running->copies.empty());  // a copy that nobody waits for
}

/// Lets the lanes of a warp go on as long as any can. Whether any could.
bool Advance(size_t warp, const std::vector<size_t>& lanes) {
  bool any = false;
  for (bool more = true; more;) {
    more = false;
    for (const size_t lane : lanes) {
      Thread& thread = *block.threads[warp * kLanes + lane];
      if (!thread.CanGoOn()) continue;
      block.running = &thread;
      thread.fibre.Resume();
      more = any = true;
    }
  }
  return any;
}

[[noreturn]] void ThrowStuck() {
  size_t ended = 0;
  size_t exchanging = 0;
  for (size_t t = 0; t < block.count; ++t) {
    const Thread& thread = *block.threads[t];
    if (thread.fibre.ended()) {
      ++ended;
    } else if (thread.counter != &block.barriers) {
      ++exchanging;
    }
  }
  throw InternalError("a block of a kernel waits for ever: " + std::to_string(block.at_barrier) +
                      " threads at a barrier, " + std::to_string(exchanging) +
                      " in a function of their warp, " + std::to_string(ended) + " ended");
}

void RunBlock(uint64_t number) {
  if (block.shared_bytes > 0) std::memset(block.shared.get(), 0xff, block.shared_bytes);
  block.warps.assign(block.count / kLanes, Warp{});
  block.at_barrier = 0;
  for (size_t t = 0; t < block.count; ++t) {
    Thread& thread = *block.threads[t];
    thread.index = {static_cast<unsigned>(t), 0, 0};
    thread.counter = nullptr;
    thread.copies.clear();
    thread.fibre.Start(&RunThread, nullptr);
  }
  const std::vector<size_t> warps = Ordered(block.warps.size(), 2 * number);
  const std::vector<size_t> lanes = Ordered(kLanes, 2 * number + 1);
  for (bool any = true; any;) {
    any = false;
    for (const size_t warp : warps) any = Advance(warp, lanes) || any;
  }
  for (size_t t = 0; t < block.count; ++t) {
    if (!block.threads[t]->fibre.ended()) ThrowStuck();
  }
}

}  // namespace

Index ThreadIndex() { return block.running->index; }
Index BlockIndex() { return block.index; }
Index GridSize() { return block.grid; }
void* SharedMemory() { return block.shared.get(); }
size_t SharedBytes() { return block.shared_bytes; }

void Run(void* /*stream*/, Extent grid, int threads, size_t shared_bytes,
         const std::function<void()>& thread) {
  CHECK(block.running == nullptr && threads % static_cast<int>(kLanes) == 0);
  block.grid = {static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y),
                static_cast<unsigned>(grid.z)};
  block.body = &thread;
  block.count = static_cast<size_t>(threads);
  block.shared_bytes = shared_bytes;
  block.shared.reset(new (std::align_val_t{1024}) std::byte[shared_bytes]);
  while (block.threads.size() < block.count) block.threads.push_back(std::make_unique<Thread>());
  const auto blocks = static_cast<size_t>(grid.x * grid.y * grid.z);
  struct Leave {
    ~Leave() { block.running = nullptr; }
  } leave;
  for (const size_t b : Ordered(blocks, blocks)) {
    block.index.x = static_cast<unsigned>(b) % block.grid.x;
    block.index.y = static_cast<unsigned>(b) / block.grid.x % block.grid.y;
    block.index.z = static_cast<unsigned>(b) / block.grid.x / block.grid.y;
    RunBlock(b);
  }
}

ThreadOrder::ThreadOrder(Order order) : before_(current_order) { current_order = order; }
ThreadOrder::~ThreadOrder() { current_order = before_; }

void Exchange(const void* input, size_t input_bytes, void* output, size_t output_bytes,
              Combine combine) {
  CHECK(input_bytes <= kMostExchanged && output_bytes <= kMostExchanged);
  const size_t thread = block.running->index.x;
  const size_t lane = thread % kLanes;
  Warp& warp = block.warps[thread / kLanes];
  if (warp.arrived == 0) warp.combine = combine;
  CHECK(warp.combine == combine);  // lanes of a warp that call different functions
  if (input_bytes > 0) std::memcpy(warp.inputs + lane * input_bytes, input, input_bytes);
  const uint64_t own = warp.exchanges;
  if (++warp.arrived == kLanes) {
    if (combine != nullptr) combine(warp.inputs, warp.outputs[own % 2]);
    warp.arrived = 0;
    ++warp.exchanges;
  } else {
    Wait(warp.exchanges, own);
  }
  if (output_bytes > 0) {
    std::memcpy(output, warp.outputs[own % 2] + lane * output_bytes, output_bytes);
  }
}

void WaitForBlock() {
  const uint64_t own = block.barriers;
  if (++block.at_barrier == block.count) {
    block.at_barrier = 0;
    ++block.barriers;
  } else {
    Wait(block.barriers, own);
  }
}

void StartCopy(void* to, const void* from, size_t bytes, bool valid) {
  block.running->copies.push_back({to, valid ? from : nullptr, bytes});
}

void FinishCopies() {
  for (const Copy& copy : block.running->copies) {
    if (copy.from == nullptr) {
      std::memset(copy.to, 0, copy.bytes);
    } else {
      std::memcpy(copy.to, copy.from, copy.bytes);
    }
  }
  block.running->copies.clear();
}

}  // namespace pipelag::cuda::emulator
