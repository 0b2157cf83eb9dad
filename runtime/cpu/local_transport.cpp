#include "runtime/cpu/local_transport.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>

#include "runtime/cpu/shared_sum.h"
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
  LocalEvent(const RunControl& control, Bell& bell) : control_(control), bell_(bell) {}

  bool Happened() const override { return happened_.load(std::memory_order_acquire); }

  void Wait() const override {
    if (control_.Look([&] { return Happened(); })) return;
    std::unique_lock lock(bell_.mutex);
    control_.Wait(
        lock, bell_.rung, [&] { return Happened(); }, [&] { return Waiting(); });
  }

  Interval When() const override {
    CHECK(Happened());
    return when_;
  }

  /// Who waits for whom. Made when it is wanted, which is hardly ever.
  virtual std::string Waiting() const = 0;

  /// With the bell's mutex held.
  void Happen(Interval when) {
    when_ = when;
    happened_.store(true, std::memory_order_release);
  }

 private:
  const RunControl& control_;
  Bell& bell_;
  Interval when_;
  std::atomic<bool> happened_{false};
};

/// Half of a message, the `number`-th of its lane.
class LocalHalf : public LocalEvent {
 public:
  LocalHalf(const RunControl& control, Bell& bell, const Program& program, int lane, bool send,
            int64_t number)
      : LocalEvent(control, bell), program_(program), lane_(lane), send_(send), number_(number) {}
  std::string Waiting() const override {
    return WaitingForMessage(program_.schedule(), program_.lanes()[static_cast<size_t>(lane_)],
                             send_, number_);
  }

 private:
  const Program& program_;
  int lane_;
  bool send_;
  int64_t number_;
};

class LocalCollective : public LocalEvent {
 public:
  LocalCollective(const RunControl& control, Bell& bell, const Schedule& schedule, int rank,
                  int group)
      : LocalEvent(control, bell), schedule_(schedule), rank_(rank), group_(group) {}
  std::string Waiting() const override { return WaitingForGroup(schedule_, rank_, group_); }

 private:
  const Schedule& schedule_;
  int rank_;
  int group_;
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

struct Contribution {
  int rank = 0;
  std::span<double> values;
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
  std::deque<std::shared_ptr<SharedSum>> sums;  // of gradients, instead of rounds
  std::vector<int64_t> posted;                  // by rank
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
      meetings[g].members =
          AddsGradients(group) ? group.stages.size() : RanksOf(p.schedule(), group).size();
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
    int64_t& posted = transfer.send ? channel.sends_posted : channel.receives_posted;
    PostedHalf half{transfer.buffer, transfer.bytes,
                    std::make_shared<LocalHalf>(state_.control, channel.bell, state_.program,
                                                transfer.lane, transfer.send, posted)};
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
    for (const EventPtr& event : after) event->Wait();
    const Schedule& schedule = state_.program.schedule();
    Meeting& meeting = state_.meetings[static_cast<size_t>(group)];
    std::shared_ptr<SharedSum> sum;
    {
      const std::lock_guard lock(meeting.bell.mutex);
      const auto index = IndexOfNext(meeting);
      while (meeting.sums.size() <= index) {
        meeting.sums.push_back(std::make_shared<SharedSum>(
            state_.control, meeting.members, static_cast<size_t>(schedule.streams_per_replica())));
      }
      sum = meeting.sums[index];
    }
    bool last = false;
    for (const GradientPart& part : parts) {
      last = sum->Contribute(part.stage, part.values, part.squared_norm);
    }
    if (last) {
      // Completed in order, since every member's earlier contribution came before.
      const std::lock_guard lock(meeting.bell.mutex);
      meeting.sums.pop_front();
      ++meeting.completed;
    }
    return sum->EventOf(WaitingForGroup(schedule, rank_, group));
  }

  EventPtr PostAllReduce(int group, std::span<double> values,
                         std::span<const EventPtr> after) override {
    for (const EventPtr& event : after) event->Wait();
    Meeting& meeting = state_.meetings[static_cast<size_t>(group)];
    const auto event = std::make_shared<LocalCollective>(state_.control, meeting.bell,
                                                         state_.program.schedule(), rank_, group);
    const Nanoseconds start = state_.control.Now();
    {
      const std::lock_guard lock(meeting.bell.mutex);
      const size_t index = IndexOfNext(meeting);
      if (meeting.rounds.size() <= index) meeting.rounds.resize(index + 1);
      Round& round = meeting.rounds[index];
      round.contributions.push_back({rank_, values, event});
      if (round.contributions.size() < meeting.members) return event;
      // The last member to come completes the round; rounds complete in order since every member's
      // earlier round came before.
      Sum(round);
      const Interval when{start, state_.control.Now()};
      for (const Contribution& one : round.contributions) one.event->Happen(when);
      meeting.rounds.pop_front();
      ++meeting.completed;
    }
    meeting.bell.rung.notify_all();
    return event;
  }

 private:
  /// Of this rank's next contribution among those not complete. With the bell's mutex held.
  size_t IndexOfNext(Meeting& meeting) const {
    const int64_t number = meeting.posted[static_cast<size_t>(rank_)]++;
    return static_cast<size_t>(number - meeting.completed);
  }

  static void Sum(Round& round) {
    std::sort(round.contributions.begin(), round.contributions.end(),
              [](const Contribution& a, const Contribution& b) { return a.rank < b.rank; });
    std::vector<std::span<double>> summands;
    for (const Contribution& one : round.contributions) summands.push_back(one.values);
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
