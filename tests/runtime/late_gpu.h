// GPUs that are late: one thread plays all streams of all of them, one piece of work at a time, now
// of this stream and now of that one, in an order drawn from a seed. Within a stream order is kept.
// Work is done when its turn comes, not when it is enqueued, so whoever forgets a wait reads what
// is not there yet, or no longer.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "models/error.h"
#include "models/random.h"
#include "runtime/device/device.h"
#include "runtime/network/gemm.h"
#include "runtime/optimizer/norm.h"

namespace pipelag {

class LateMachine {
 public:
  /// True once it is done; else it is asked again.
  using Work = std::function<bool()>;

  explicit LateMachine(uint64_t seed) : seed_(seed) {}
  ~LateMachine() {
    thread_.request_stop();
    changed_.notify_all();
  }

  struct Queue {
    LateMachine* machine = nullptr;
    std::deque<Work> work;
    std::vector<Work>* recorded = nullptr;  // where work goes that is captured
    uint64_t rest = 0;                      // turns for which it does nothing
  };

  Stream NewStream() {
    const std::lock_guard lock(mutex_);
    queues_.push_back(std::make_unique<Queue>());
    queues_.back()->machine = this;
    return queues_.back().get();
  }
  static LateMachine& Of(Stream stream) { return *static_cast<Queue*>(stream)->machine; }

  void Enqueue(Stream stream, Work work) {
    {
      const std::lock_guard lock(mutex_);
      auto* const queue = static_cast<Queue*>(stream);
      if (queue->recorded != nullptr) return queue->recorded->push_back(std::move(work));
      queue->work.push_back(std::move(work));
    }
    changed_.notify_all();
  }
  /// Work that the stream is given from now on goes there, until it is null again.
  void Record(Stream stream, std::vector<Work>* to) {
    const std::lock_guard lock(mutex_);
    static_cast<Queue*>(stream)->recorded = to;
  }
  void Do(Stream stream, std::function<void()> work) {
    Enqueue(stream, [work = std::move(work)] {
      PrepareThread();
      work();
      return true;
    });
  }
  /// Waits for all that the stream has been given.
  void Finish(Stream stream) {
    ExpectNoCapture("waited for");
    std::atomic<bool> done{false};
    Do(stream, [&] { done = true; });
    while (!done) std::this_thread::yield();
  }
  /// What a thread that captures must not do.
  static void ExpectNoCapture(const char* what) {
    EXPECT_FALSE(captures) << "something is " << what << " while work is captured";
  }
  inline static thread_local bool captures = false;
  bool Idle(Nanoseconds patience) {
    ExpectNoCapture("waited for");
    const auto end = std::chrono::steady_clock::now() + patience;
    std::unique_lock lock(mutex_);
    while (std::any_of(queues_.begin(), queues_.end(),
                       [](const auto& q) { return !q->work.empty(); })) {
      if (std::chrono::steady_clock::now() >= end) return false;
      changed_.wait_for(lock, std::chrono::milliseconds(1));
    }
    return true;
  }

 private:
  void Loop(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    for (uint64_t turn = 0; !stop.stop_requested(); ++turn) {
      if (TakeTurn(turn, lock)) continue;
      changed_.wait_for(lock, std::chrono::microseconds(100));
    }
  }

  /// False if nobody could do anything.
  bool TakeTurn(uint64_t turn, std::unique_lock<std::mutex>& lock) {
    std::vector<Queue*> ready;
    bool resting = false;
    for (const auto& queue : queues_) {
      if (queue->work.empty()) continue;
      if (queue->rest > 0) {
        --queue->rest;
        resting = true;
      } else {
        ready.push_back(queue.get());
      }
    }
    const uint64_t bits = RandomBits(seed_, turn);
    for (size_t k = 0; k < ready.size(); ++k) {
      Queue& queue = *ready[(k + UniformBelow(bits, ready.size())) % ready.size()];
      const Work& work = queue.work.front();  // stays where it is while others are enqueued
      lock.unlock();
      const bool done = work();
      if (done && bits % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
      lock.lock();
      if (!done) continue;
      queue.work.pop_front();
      queue.rest = UniformBelow(RandomBits(seed_ + 1, turn), 6);
      return true;
    }
    return resting;
  }

  uint64_t seed_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Queue>> queues_;
  std::jthread thread_{[this](const std::stop_token& stop) { Loop(stop); }};  // last: ends first
};

/// One of the machine's GPUs; they differ in name only.
class LateGpu : public ComputeDevice {
 public:
  LateGpu(LateMachine& machine, int ordinal, bool reaches_others)
      : machine_(machine), ordinal_(ordinal), reaches_others_(reaches_others) {}
  ~LateGpu() override {
    EXPECT_TRUE(memory_.empty()) << "memory is left";
    EXPECT_TRUE(graphs_.empty()) << "graphs are left";
  }

  std::string name() const override { return "late GPU " + std::to_string(ordinal_); }
  void MakeCurrent() override {}

  void* Allocate(size_t bytes) override { return NewMemory(bytes, memory_); }
  void Free(void* memory) noexcept override { FreeMemory(memory, memory_); }
  void* AllocatePinned(size_t bytes) override { return NewMemory(bytes, pinned_); }
  void FreePinned(void* memory) noexcept override { FreeMemory(memory, pinned_); }
  Stream NewStream(bool) override {
    EXPECT_FALSE(sealed) << "a stream is made";
    LateMachine::ExpectNoCapture("taken");
    return machine_.NewStream();
  }
  void FreeStream(Stream) noexcept override {}

  DeviceMark NewMark() override {
    EXPECT_FALSE(sealed) << "a mark is made";
    LateMachine::ExpectNoCapture("taken");
    const std::lock_guard lock(mutex_);
    marks_.push_back(std::make_shared<Mark>());
    return marks_.back().get();
  }
  void FreeMark(DeviceMark) noexcept override {}
  void Record(DeviceMark mark, Stream stream) override {
    LateMachine::ExpectNoCapture("marked");
    auto* const m = static_cast<Mark*>(mark);
    const int64_t number = ++m->recorded;
    machine_.Enqueue(stream, [m, number] {
      m->time = std::chrono::steady_clock::now().time_since_epoch();
      m->reached = number;
      return true;
    });
  }
  void WaitFor(Stream stream, DeviceMark mark) override {
    LateMachine::ExpectNoCapture("waited for");
    if (forgets && forgets(stream)) return;
    auto* const m = static_cast<Mark*>(mark);
    const int64_t number = m->recorded;
    machine_.Enqueue(stream, [m, number] { return m->reached >= number; });
  }
  bool Reached(DeviceMark mark) override {
    LateMachine::ExpectNoCapture("asked for");
    if (broken) throw Error(name() + ": an illegal memory access was encountered");
    const auto* const m = static_cast<Mark*>(mark);
    return m->reached >= m->recorded;
  }
  Nanoseconds Between(DeviceMark from, DeviceMark to) override {
    return static_cast<Mark*>(to)->time.load() - static_cast<Mark*>(from)->time.load();
  }

  void Copy(Stream stream, void* to, const void* from, size_t bytes) override {
    machine_.Do(stream, [=] { std::memcpy(to, from, bytes); });
  }
  void Fill(Stream stream, void* at, uint8_t byte, size_t bytes) override {
    machine_.Do(stream, [=] { std::memset(at, byte, bytes); });
  }
  void Add(Stream stream, float* sum, const float* summand, int64_t count) override {
    AddAny(stream, sum, summand, count);
  }
  void Add(Stream stream, double* sum, const double* summand, int64_t count) override {
    AddAny(stream, sum, summand, count);
  }
  void SquaredNorm(Stream stream, const float* values, int64_t count, void* scratch,
                   double* norm) override {
    machine_.Do(stream, [=, this] {
      std::memset(scratch, 0xFF, SquaredNormScratch(count));
      *norm = pipelag::SquaredNorm(count, values);
    });
  }
  size_t SquaredNormScratch(int64_t count) const override {
    return static_cast<size_t>(count / 100 + 1) * sizeof(double);
  }
  void BeginCapture(Stream stream) override {
    LateMachine::ExpectNoCapture("captured");
    LateMachine::captures = true;
    recording_ = std::make_unique<Graph>();
    machine_.Record(stream, recording_.get());
  }
  DeviceGraph EndCapture(Stream stream) override {
    EXPECT_FALSE(sealed) << "a graph is made";
    DropCapture(stream);
    const std::lock_guard lock(mutex_);
    ++captured;
    return graphs_.emplace_back(std::move(recording_)).get();
  }
  void DropCapture(Stream stream) noexcept override {
    EXPECT_TRUE(LateMachine::captures);
    LateMachine::captures = false;
    machine_.Record(stream, nullptr);
  }
  void Replay(Stream stream, DeviceGraph graph) override {
    ++replayed;
    for (const LateMachine::Work& work : *static_cast<Graph*>(graph))
      machine_.Enqueue(stream, work);
  }
  void FreeGraph(DeviceGraph graph) noexcept override {
    const std::lock_guard lock(mutex_);
    EXPECT_EQ(std::erase_if(graphs_, [&](const auto& one) { return one.get() == graph; }), 1U);
  }
  std::atomic<int> captured{0};
  std::atomic<int> replayed{0};

  bool Reaches(const ComputeDevice& other) override {
    const std::lock_guard lock(mutex_);
    const bool first = opened_.insert(static_cast<const LateGpu&>(other).ordinal_).second;
    EXPECT_FALSE(first && sealed) << "memory is opened";
    return reaches_others_;
  }
  /// The GPUs whose memory was asked for.
  const std::set<int>& opened() const { return opened_; }
  bool Drain(Nanoseconds patience) noexcept override { return machine_.Idle(patience); }

  /// Whether a wait of the stream is left out.
  std::function<bool(Stream)> forgets;
  std::atomic<bool> broken{false};
  /// Nothing may be taken or given back: on a GPU that may wait for all that runs.
  std::atomic<bool> sealed{false};

 private:
  struct Mark {
    std::atomic<int64_t> recorded{0};
    std::atomic<int64_t> reached{0};
    std::atomic<Nanoseconds> time{Nanoseconds{0}};
  };
  using Memory = std::map<const std::byte*, size_t>;
  using Graph = std::vector<LateMachine::Work>;

  void* NewMemory(size_t bytes, Memory& all) {
    LateMachine::ExpectNoCapture("taken");
    EXPECT_FALSE(sealed) << bytes << " bytes are allocated";
    const size_t rounded = (bytes + 255) / 256 * 256;
    auto* const memory = static_cast<std::byte*>(std::aligned_alloc(256, rounded));
    std::memset(memory, 0xFF, rounded);
    const std::lock_guard lock(mutex_);
    all[memory] = bytes;
    return memory;
  }
  void FreeMemory(void* memory, Memory& all) noexcept {
    EXPECT_FALSE(sealed) << "memory is freed";
    const std::lock_guard lock(mutex_);
    EXPECT_EQ(all.erase(static_cast<std::byte*>(memory)), 1U);
    std::free(memory);
  }
  template <class Value>
  void AddAny(Stream stream, Value* sum, const Value* summand, int64_t count) {
    machine_.Do(stream, [=] {
      for (int64_t i = 0; i < count; ++i) sum[i] += summand[i];
    });
  }

  LateMachine& machine_;
  int ordinal_;
  bool reaches_others_;
  std::mutex mutex_;
  Memory memory_;
  Memory pinned_;
  std::set<int> opened_;
  inline static thread_local std::unique_ptr<Graph> recording_;
  std::vector<std::unique_ptr<Graph>> graphs_;
  std::vector<std::shared_ptr<Mark>> marks_;
};

}  // namespace pipelag
