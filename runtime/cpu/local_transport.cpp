#include "runtime/cpu/local_transport.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>

#include "runtime/network/gemm.h"
#include "runtime/optimizer/norm.h"
#include "runtime/runnable.h"
#include "runtime/summation.h"

namespace pipelag {
namespace {

/// A mutex and the news that it guards.
struct Bell {
  std::mutex mutex;
  std::condition_variable rung;
};

class LocalEvent : public Event {
 public:
  LocalEvent(const RunControl& control, Bell& bell, std::string waiting)
      : control_(control), bell_(bell), waiting_(std::move(waiting)) {}

  bool Happened() const override { return happened_.load(std::memory_order_acquire); }

  void Wait() const override {
    if (control_.Look([&] { return Happened(); })) return;
    std::unique_lock lock(bell_.mutex);
    control_.Wait(
        lock, bell_.rung, [&] { return Happened(); }, [&] { return waiting_; });
  }

  Interval When() const override {
    CHECK(Happened());
    return when_;
  }

  /// With the bell's mutex held.
  void Happen(Interval when) {
    when_ = when;
    happened_.store(true, std::memory_order_release);
  }

 private:
  const RunControl& control_;
  Bell& bell_;
  std::string waiting_;
  Interval when_;
  std::atomic<bool> happened_{false};
};

struct PostedHalf {
  std::byte* buffer = nullptr;
  size_t bytes = 0;
  std::shared_ptr<LocalEvent> event;
};

struct Channel {
  Bell bell;
  std::deque<PostedHalf> sends;
  std::deque<PostedHalf> receives;
  int64_t sends_posted = 0;
  int64_t receives_posted = 0;
};

/// One summand, of either kind.
struct Contribution {
  int place = 0;  // in the order of summation
  std::span<double> values;
  std::span<float> gradients;
  double* squared_norm = nullptr;  // of the sum of the gradients
};

/// A rank's part in a collective.
struct Collective {
  int group = 0;
  std::vector<Contribution> mine;
  std::shared_ptr<LocalEvent> event;
};

/// The reduce lanes. A collective starts when it heads the lanes of all its members.
struct Meeting {
  Bell bell;
  std::vector<std::deque<Collective>> lanes;  // by rank
  std::vector<std::vector<int>> members;      // ranks, by group
  std::vector<bool> under_way;                // by group
};

}  // namespace

struct LocalHub::State {
  const Program& program;
  const RunControl& control;
  std::vector<Channel> channels;
  Meeting meeting;

  State(const Program& p, const RunControl& c)
      : program(p), control(c), channels(p.lanes().size()) {
    const Schedule& schedule = p.schedule();
    meeting.lanes.resize(static_cast<size_t>(schedule.ranks));
    meeting.under_way.resize(schedule.groups.size());
    for (const CollectiveGroup& group : schedule.groups) {
      meeting.members.push_back(RanksOf(schedule, group));
    }
  }
};

namespace {

class LocalEnd : public Transport {
 public:
  LocalEnd(LocalHub::State& state, int rank) : state_(state), rank_(rank) {}

  EventPtr Post(const Transfer& transfer, std::span<const EventPtr> after) override {
    for (const EventPtr& event : after) event->Wait();
    Channel& channel = state_.channels[static_cast<size_t>(transfer.lane)];
    const Lane& lane = state_.program.lanes()[static_cast<size_t>(transfer.lane)];
    int64_t& posted = transfer.send ? channel.sends_posted : channel.receives_posted;
    PostedHalf half{transfer.buffer, transfer.bytes,
                    std::make_shared<LocalEvent>(state_.control, channel.bell,
                                                 WaitingForMessage(lane, transfer.send, posted))};
    const EventPtr result = half.event;
    PostedHalf other;
    {
      const std::lock_guard lock(channel.bell.mutex);
      ++posted;
      auto& mine = transfer.send ? channel.sends : channel.receives;
      auto& theirs = transfer.send ? channel.receives : channel.sends;
      if (theirs.empty()) {
        mine.push_back(std::move(half));
        return result;
      }
      other = std::move(theirs.front());
      theirs.pop_front();
    }
    CHECK(half.bytes == other.bytes);
    const Nanoseconds start = state_.control.Now();
    std::memcpy(transfer.send ? other.buffer : half.buffer,
                transfer.send ? half.buffer : other.buffer, half.bytes);
    const Interval when{start, state_.control.Now()};
    {
      const std::lock_guard lock(channel.bell.mutex);
      half.event->Happen(when);
      other.event->Happen(when);
    }
    channel.bell.rung.notify_all();
    return result;
  }

  EventPtr PostGradientSum(int group, const std::vector<GradientPart>& parts,
                           std::span<const EventPtr> after) override {
    std::vector<Contribution> mine;
    for (const GradientPart& part : parts) {
      mine.push_back({part.stage, {}, part.values, part.squared_norm});
    }
    return Join(group, std::move(mine), after);
  }

  EventPtr PostAllReduce(int group, std::span<double> values,
                         std::span<const EventPtr> after) override {
    return Join(group, {{rank_, values, {}, nullptr}}, after);
  }

 private:
  EventPtr Join(int group, std::vector<Contribution> mine, std::span<const EventPtr> after) {
    for (const EventPtr& event : after) event->Wait();
    Meeting& meeting = state_.meeting;
    auto event =
        std::make_shared<LocalEvent>(state_.control, meeting.bell, WaitingForGroup(rank_, group));
    std::unique_lock lock(meeting.bell.mutex);
    auto& lane = meeting.lanes[static_cast<size_t>(rank_)];
    lane.push_back({group, std::move(mine), event});
    if (lane.size() == 1) GoOn(lock, rank_);
    return event;
  }

  /// Does what the collective at the head of a rank's lane is the last to come for, and what that
  /// lets start in turn.
  void GoOn(std::unique_lock<std::mutex>& lock, int rank) {
    Meeting& meeting = state_.meeting;
    std::vector<int> changed = {rank};
    while (!changed.empty()) {
      const auto& lane = meeting.lanes[static_cast<size_t>(changed.back())];
      changed.pop_back();
      if (lane.empty() || !AllAreAt(lane.front().group)) continue;
      const int group = lane.front().group;
      Do(lock, group);
      for (const int member : meeting.members[static_cast<size_t>(group)]) {
        changed.push_back(member);
      }
    }
  }

  bool AllAreAt(int group) const {
    const Meeting& meeting = state_.meeting;
    const auto& members = meeting.members[static_cast<size_t>(group)];
    return !meeting.under_way[static_cast<size_t>(group)] &&
           std::all_of(members.begin(), members.end(), [&](int member) {
             const auto& lane = meeting.lanes[static_cast<size_t>(member)];
             return !lane.empty() && lane.front().group == group;
           });
  }

  /// With the lock held, but not while it adds.
  void Do(std::unique_lock<std::mutex>& lock, int group) {
    Meeting& meeting = state_.meeting;
    std::vector<Contribution> all;
    for (const int member : meeting.members[static_cast<size_t>(group)]) {
      const Collective& own = meeting.lanes[static_cast<size_t>(member)].front();
      all.insert(all.end(), own.mine.begin(), own.mine.end());
    }
    meeting.under_way[static_cast<size_t>(group)] = true;
    lock.unlock();
    PrepareThread();  // whoever comes last adds them up
    const Nanoseconds start = state_.control.Now();
    std::sort(all.begin(), all.end(),
              [](const Contribution& a, const Contribution& b) { return a.place < b.place; });
    Sum(all, &Contribution::values);
    Sum(all, &Contribution::gradients);
    for (const Contribution& one : all) {
      if (one.squared_norm == nullptr) continue;
      *one.squared_norm =
          SquaredNorm(static_cast<int64_t>(one.gradients.size()), one.gradients.data());
    }
    const Interval when{start, state_.control.Now()};
    lock.lock();
    meeting.under_way[static_cast<size_t>(group)] = false;
    for (const int member : meeting.members[static_cast<size_t>(group)]) {
      auto& lane = meeting.lanes[static_cast<size_t>(member)];
      lane.front().event->Happen(when);
      lane.pop_front();
    }
    meeting.bell.rung.notify_all();
  }

  template <class Span>
  static void Sum(const std::vector<Contribution>& all, Span Contribution::*of) {
    std::vector<Span> summands;
    for (const Contribution& one : all) summands.push_back(one.*of);
    AddUp(summands);
  }

  LocalHub::State& state_;
  int rank_;
};

}  // namespace

LocalHub::LocalHub(const Program& program, const RunControl& control)
    : state_(std::make_unique<State>(program, control)) {}

LocalHub::~LocalHub() = default;

std::unique_ptr<Transport> LocalHub::End(int rank) {
  return std::make_unique<LocalEnd>(*state_, rank);
}

}  // namespace pipelag
