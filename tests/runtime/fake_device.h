// A device that completes late and out of order, around any backend: every lane is a queue with a
// thread of its own that dawdles before and after each piece of work, so that the host is far ahead
// and lanes overtake each other. A worker that takes anything for done too early computes garbage.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "models/random.h"
#include "runtime/compute_around.h"
#include "runtime/executor.h"
#include "tests/runtime/transport_around.h"

namespace pipelag {

class LateEvent : public Event {
 public:
  explicit LateEvent(const RunControl& control) : control_(control) {}

  bool Happened() const override {
    const std::lock_guard lock(mutex_);
    return happened_;
  }
  void Wait() const override {
    std::unique_lock lock(mutex_);
    control_.Wait(
        lock, changed_, [&] { return happened_; }, [] { return "a late event"; });
    if (error_) std::rethrow_exception(error_);
  }
  Interval When() const override {
    const std::lock_guard lock(mutex_);
    CHECK(happened_);
    return when_;
  }
  void Happen(Interval when, std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    happened_ = true;
    when_ = when;
    error_ = std::move(error);
    changed_.notify_all();
  }

 private:
  const RunControl& control_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool happened_ = false;
  Interval when_;
  std::exception_ptr error_;
};

/// A lane: work in order, late.
class LateQueue {
 public:
  LateQueue(const RunControl& control, uint64_t seed) : control_(control), seed_(seed) {}
  ~LateQueue() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    changed_.notify_all();
  }

  /// `work` returns the event whose time counts.
  EventPtr Push(std::span<const EventPtr> after, std::function<EventPtr()> work) {
    auto event = std::make_shared<LateEvent>(control_);
    {
      const std::lock_guard lock(mutex_);
      items_.push_back({{after.begin(), after.end()}, std::move(work), event});
    }
    changed_.notify_all();
    return event;
  }

 private:
  struct Item {
    std::vector<EventPtr> after;
    std::function<EventPtr()> work;
    std::shared_ptr<LateEvent> event;
  };

  void Loop() {
    for (uint64_t n = 0;; ++n) {
      Item item;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return closed_ || !items_.empty(); });
        if (items_.empty()) return;
        item = std::move(items_.front());
        items_.pop_front();
      }
      Interval when;
      std::exception_ptr error;
      try {
        for (const EventPtr& event : item.after) event->Wait();
        Dawdle(2 * n);
        const EventPtr inner = item.work();
        inner->Wait();
        when = inner->When();
        Dawdle(2 * n + 1);
      } catch (...) {
        error = std::current_exception();
      }
      item.event->Happen(when, error);
    }
  }

  void Dawdle(uint64_t n) const {
    std::this_thread::sleep_for(std::chrono::microseconds(UniformBelow(RandomBits(seed_, n), 300)));
  }

  const RunControl& control_;
  uint64_t seed_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> items_;
  bool closed_ = false;
  std::jthread thread_{[this] { Loop(); }};  // last: joins before the rest goes
};

class FakeDevice : public ComputeAround, public TransportAround {
 public:
  FakeDevice(RankBackend inner, const RunControl& control, uint64_t seed)
      : ComputeAround(*inner.compute),
        TransportAround(*inner.transport),
        control_(control),
        seed_(seed),
        compute_(control, seed) {}

  EventPtr Start(const ComputeTask& task, std::span<const EventPtr> after) override {
    return compute_.Push(after, [this, task] { return ComputeAround::Start(task, {}); });
  }
  EventPtr Post(const Transfer& transfer, std::span<const EventPtr> after) override {
    return QueueOf(transfer.lane).Push(after, [this, transfer] {
      return TransportAround::Post(transfer, {});
    });
  }
  EventPtr PostGradientSum(int group, const std::vector<GradientPart>& parts,
                           std::span<const EventPtr> after) override {
    return QueueOf(kReduceLane).Push(after, [this, group, parts] {
      return TransportAround::PostGradientSum(group, parts, {});
    });
  }
  EventPtr PostAllReduce(int group, std::span<double> values,
                         std::span<const EventPtr> after) override {
    return QueueOf(kReduceLane).Push(after, [this, group, values] {
      return TransportAround::PostAllReduce(group, values, {});
    });
  }

 private:
  static constexpr int kReduceLane = -1;

  LateQueue& QueueOf(int lane) {
    std::unique_ptr<LateQueue>& queue = lanes_[lane];
    if (!queue) {
      queue = std::make_unique<LateQueue>(control_, seed_ + 1 + static_cast<uint64_t>(lane + 64));
    }
    return *queue;
  }

  const RunControl& control_;
  uint64_t seed_;
  LateQueue compute_;
  std::map<int, std::unique_ptr<LateQueue>> lanes_;
};

}  // namespace pipelag
