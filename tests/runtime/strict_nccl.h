// NCCL for late GPUs, as strict as its documentation lets it be: a half is done when it has met its
// other half and not before, a communicator is busy for a while after every call, and every mistake
// is an error. It can be made to fail.
#pragma once

#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "models/error.h"
#include "runtime/device/collective_library.h"
#include "tests/runtime/late_gpu.h"

namespace pipelag {

class StrictNccl : public CollectiveLibrary {
 public:
  std::string name() const override { return "strict NCCL"; }
  Id NewId() override {
    const std::lock_guard lock(mutex_);
    Id id{};
    const int number = ++ids_;
    std::memcpy(id.data(), &number, sizeof number);
    return id;
  }
  std::unique_ptr<Communicator> Join(const Id& id, int size, int rank) override;

  /// The most halves that a group had.
  std::atomic<size_t> largest_group{0};
  /// So many communicators of a rank must be aborted at once: one alone does not come to an end.
  std::atomic<int> abort_together{0};
  std::atomic<int> aborting{0};
  std::atomic<int> aborted_alone{0};
  /// Nothing may be sent between ranks of a communicator that have not sent to each other before:
  /// making their connection may wait for all that runs.
  std::atomic<bool> sealed{false};
  /// Halves that are lost: called with every one, in any order.
  std::function<bool(const Communicator::Half&)> loses;

 private:
  friend class StrictCommunicator;

  struct Waiting {
    Communicator::Half half;
    std::atomic<bool> done{false};
  };
  struct World {
    int size = 0;
    std::set<int> joined;
    std::set<int> finished;
    std::string error;
    std::set<std::pair<int, int>> connected;                                    // from, to
    std::map<std::pair<int, int>, std::deque<std::shared_ptr<Waiting>>> sends;  // by from, to
    std::map<std::pair<int, int>, std::deque<std::shared_ptr<Waiting>>> receives;
  };

  std::mutex mutex_;
  int ids_ = 0;
  std::map<Id, std::shared_ptr<World>> worlds_;
};

class StrictCommunicator : public Communicator {
 public:
  StrictCommunicator(StrictNccl& library, std::shared_ptr<StrictNccl::World> world, int rank)
      : library_(library), world_(std::move(world)), rank_(rank) {}

  void Post(std::span<const Half> group, Stream stream) override {
    const std::lock_guard lock(library_.mutex_);
    CHECK(busy_ == 0 && joined() && !finishing_ && !group.empty());
    library_.largest_group = std::max<size_t>(library_.largest_group, group.size());
    // Nothing is launched before the communicator is ready again.
    launch_ = [this, halves = std::vector<Half>(group.begin(), group.end()), stream] {
      auto waiting = std::make_shared<std::vector<std::shared_ptr<StrictNccl::Waiting>>>();
      LateMachine::Of(stream).Enqueue(stream, [library = &library_, world = world_, rank = rank_,
                                               aborted = aborted_, halves, waiting] {
        const std::lock_guard inside(library->mutex_);
        if (*aborted) return true;
        if (waiting->empty()) {
          Begin(*library, *world, rank, halves, *waiting);
          Match(*world, rank, halves);
        }
        return std::all_of(waiting->begin(), waiting->end(),
                           [](const auto& one) { return one->done.load(); });
      });
    };
    busy_ = 2;
  }
  bool Ready() override {
    const std::lock_guard lock(library_.mutex_);
    if (!world_->error.empty()) throw Error(world_->error);
    if (!joined()) return false;
    if (finishing_) return static_cast<int>(world_->finished.size()) == world_->size;
    if (busy_ > 0 && --busy_ == 0) {
      launch_();
      launch_ = {};
    }
    return busy_ == 0;
  }
  void Finish() override {
    const std::lock_guard lock(library_.mutex_);
    finishing_ = true;
    world_->finished.insert(rank_);
  }
  void Abort() noexcept override {
    const int together = library_.abort_together;
    ++library_.aborting;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(2);
    while (library_.aborting < together) {
      if (std::chrono::steady_clock::now() > end) {
        ++library_.aborted_alone;
        break;
      }
      std::this_thread::yield();
    }
    const std::lock_guard lock(library_.mutex_);
    *aborted_ = true;
    if (world_->error.empty() && static_cast<int>(world_->finished.size()) < world_->size) {
      world_->error = "remote process exited or there was a network error";
    }
  }

 private:
  using Waiting = StrictNccl::Waiting;
  using World = StrictNccl::World;

  bool joined() const { return static_cast<int>(world_->joined.size()) == world_->size; }

  static void Begin(StrictNccl& library, World& world, int rank, const std::vector<Half>& halves,
                    std::vector<std::shared_ptr<Waiting>>& waiting) {
    for (const Half& half : halves) {
      waiting.push_back(std::make_shared<Waiting>());
      waiting.back()->half = half;
      if (library.loses && library.loses(half)) continue;
      const auto ends = half.send ? std::pair{rank, half.peer} : std::pair{half.peer, rank};
      EXPECT_FALSE(world.connected.insert(ends).second && library.sealed)
          << "rank " << ends.first << " is connected to rank " << ends.second;
      if (half.send) {
        world.sends[{rank, half.peer}].push_back(waiting.back());
      } else {
        world.receives[{half.peer, rank}].push_back(waiting.back());
      }
    }
  }
  /// Those of one rank only: whoever comes last matches both.
  static void Match(World& world, int rank, const std::vector<Half>& halves) {
    for (const Half& half : halves) {
      const auto ends = half.send ? std::pair{rank, half.peer} : std::pair{half.peer, rank};
      auto& sends = world.sends[ends];
      auto& receives = world.receives[ends];
      while (!sends.empty() && !receives.empty()) {
        const Half& from = sends.front()->half;
        const Half& to = receives.front()->half;
        if (from.bytes != to.bytes) {
          world.error = "message truncated: received count differs from sent count";
          return;
        }
        std::memcpy(to.buffer, from.buffer, to.bytes);
        sends.front()->done = true;
        receives.front()->done = true;
        sends.pop_front();
        receives.pop_front();
      }
    }
  }

  StrictNccl& library_;
  std::shared_ptr<World> world_;
  int rank_;
  int busy_ = 0;
  bool finishing_ = false;
  std::function<void()> launch_;
  std::shared_ptr<std::atomic<bool>> aborted_ = std::make_shared<std::atomic<bool>>(false);
};

inline std::unique_ptr<Communicator> StrictNccl::Join(const Id& id, int size, int rank) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<World>& world = worlds_[id];
  if (!world) world = std::make_shared<World>();
  if (world->size != 0 && world->size != size) world->error = "invalid argument: sizes differ";
  world->size = size;
  if (!world->joined.insert(rank).second) world->error = "invalid usage: duplicate rank";
  return std::make_unique<StrictCommunicator>(*this, world, rank);
}

}  // namespace pipelag
