#include "runtime/cpu/local_transport.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>

#include "runtime/network/gemm.h"
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
  std::shared_ptr<LocalEvent> event;
};

/// Collectives of one group, in order. Members may be one apart: the next round's come into the
/// next entry.
struct Round {
  std::vector<Contribution> contributions;
};
struct Meeting {
  Bell bell;
  size_t members = 0;  // summands of a round
  std::deque<Round> rounds;
  std::vector<int64_t> posted;  // by rank
  int64_t completed = 0;
};

}  // namespace

struct LocalHub::State {
  const Program& program;
  const RunControl& control;
  std::vector<Channel> channels;
  std::vector<Meeting> meetings;

  State(const Program& p, const RunControl& c)
      : program(p), control(c), channels(p.lanes().size()), meetings(p.schedule().groups.size()) {
    for (size_t g = 0; g < meetings.size(); ++g) {
      const CollectiveGroup& group = p.schedule().groups[g];
      const bool by_stage = group.purpose == CollectiveGroup::Purpose::kWeights;
      meetings[g].members = by_stage ? group.stages.size() : RanksOf(p.schedule(), group).size();
      meetings[g].posted.resize(static_cast<size_t>(p.schedule().ranks));
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
    PrepareThread();  // whoever comes last adds them up
    std::vector<Contribution> mine;
    for (const GradientPart& part : parts) mine.push_back({part.stage, {}, part.values, nullptr});
    return Meet(group, std::move(mine), after);
  }

  EventPtr PostAllReduce(int group, std::span<double> values,
                         std::span<const EventPtr> after) override {
    return Meet(group, {{rank_, values, {}, nullptr}}, after);
  }

 private:
  EventPtr Meet(int group, std::vector<Contribution> mine, std::span<const EventPtr> after) {
    for (const EventPtr& event : after) event->Wait();
    Meeting& meeting = state_.meetings[static_cast<size_t>(group)];
    auto event =
        std::make_shared<LocalEvent>(state_.control, meeting.bell, WaitingForGroup(rank_, group));
    const Nanoseconds start = state_.control.Now();
    {
      const std::lock_guard lock(meeting.bell.mutex);
      const int64_t number = meeting.posted[static_cast<size_t>(rank_)]++;
      const auto index = static_cast<size_t>(number - meeting.completed);
      if (meeting.rounds.size() <= index) meeting.rounds.resize(index + 1);
      Round& round = meeting.rounds[index];
      for (Contribution& one : mine) {
        one.event = event;
        round.contributions.push_back(std::move(one));
      }
      if (round.contributions.size() < meeting.members) return event;
      // The last member to come completes the round; rounds complete in order since every member's
      // earlier round came before.
      std::sort(round.contributions.begin(), round.contributions.end(),
                [](const Contribution& a, const Contribution& b) { return a.place < b.place; });
      Sum(round, &Contribution::values);
      Sum(round, &Contribution::gradients);
      const Interval when{start, state_.control.Now()};
      for (const Contribution& one : round.contributions) one.event->Happen(when);
      meeting.rounds.pop_front();
      ++meeting.completed;
    }
    meeting.bell.rung.notify_all();
    return event;
  }

  template <class Span>
  static void Sum(Round& round, Span Contribution::*of) {
    std::vector<Span> summands;
    for (const Contribution& one : round.contributions) summands.push_back(one.*of);
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
