#include "runtime/device/device_hub.h"

#include <algorithm>
#include <deque>
#include <mutex>

#include "runtime/runnable.h"

namespace pipelag {
namespace {

struct DeviceHalf {
  std::byte* buffer = nullptr;
  size_t bytes = 0;
  std::shared_ptr<const DeviceEvent> event;
  std::vector<EventPtr> after;
};

struct DeviceChannel {
  explicit DeviceChannel(TimedStream of_lane) : stream(std::move(of_lane)) {}

  TimedStream stream;
  std::mutex mutex;
  std::deque<DeviceHalf> sends;
  std::deque<DeviceHalf> receives;
  int64_t sends_posted = 0;
  int64_t receives_posted = 0;
};

/// One summand, of either kind.
struct DeviceSummand {
  int place = 0;  // in the order of summation
  int rank = 0;
  std::span<double> values;
  std::span<float> gradients;
};

struct DeviceRound {
  std::vector<DeviceSummand> summands;
  std::vector<std::shared_ptr<const DeviceEvent>> events;
  std::vector<EventPtr> after;
};

struct DeviceMeeting {
  explicit DeviceMeeting(TimedStream of_group) : stream(std::move(of_group)) {}

  TimedStream stream;
  std::mutex mutex;
  size_t members = 0;           // ranks
  std::vector<int64_t> posted;  // by rank
  int64_t completed = 0;
  std::deque<DeviceRound> rounds;  // from `completed` on
  DeviceMemory scratch;            // for a summand that the device does not reach
  size_t scratch_bytes = 0;
};

}  // namespace

struct DeviceHub::State {
  const Program& program;
  const RunControl& control;
  std::vector<DeviceClock*> clocks;
  MoveMessage move;
  std::vector<std::unique_ptr<DeviceChannel>> channels;  // by lane
  std::vector<std::unique_ptr<DeviceMeeting>> meetings;  // by group
};

namespace {

class DeviceHubEnd : public Transport {
 public:
  DeviceHubEnd(DeviceHub::State& state, int rank) : state_(state), rank_(rank) {}

  EventPtr Post(const Transfer& transfer, std::span<const EventPtr> after) override {
    for (const EventPtr& event : after) Issued(event);
    DeviceChannel& channel = *state_.channels[static_cast<size_t>(transfer.lane)];
    const Lane& lane = state_.program.lanes()[static_cast<size_t>(transfer.lane)];
    // One at a time: copies are enqueued in the lane's order.
    const std::lock_guard lock(channel.mutex);
    int64_t& posted = transfer.send ? channel.sends_posted : channel.receives_posted;
    DeviceHalf half{transfer.buffer,
                    transfer.bytes,
                    std::make_shared<DeviceEvent>(state_.control,
                                                  WaitingForMessage(lane, transfer.send, posted)),
                    {after.begin(), after.end()}};
    ++posted;
    const EventPtr result = half.event;
    auto& theirs = transfer.send ? channel.receives : channel.sends;
    if (theirs.empty()) {
      (transfer.send ? channel.sends : channel.receives).push_back(std::move(half));
      return result;
    }
    const DeviceHalf other = std::move(theirs.front());
    theirs.pop_front();
    Move(transfer.lane, channel, transfer.send ? half : other, transfer.send ? other : half);
    return result;
  }

  EventPtr PostGradientSum(int group, const std::vector<GradientPart>& parts,
                           std::span<const EventPtr> after) override {
    std::vector<DeviceSummand> mine;
    for (const GradientPart& part : parts) mine.push_back({part.stage, rank_, {}, part.values});
    return Meet(group, std::move(mine), after);
  }

  EventPtr PostAllReduce(int group, std::span<double> values,
                         std::span<const EventPtr> after) override {
    return Meet(group, {{rank_, rank_, values, {}}}, after);
  }

 private:
  static void Issued(const EventPtr& event) {
    if (const auto* of_device = dynamic_cast<const DeviceEvent*>(event.get())) {
      of_device->WaitUntilIssued();
    } else {
      event->Wait();
    }
  }

  void Move(int lane, DeviceChannel& channel, const DeviceHalf& send, const DeviceHalf& receive) {
    CHECK(send.bytes == receive.bytes);
    ComputeDevice& device = channel.stream.device();
    std::vector<EventPtr> after = send.after;
    after.insert(after.end(), receive.after.begin(), receive.after.end());
    for (const EventPtr& event : after) MakeFollow(device, channel.stream.get(), event);
    const auto stretch = std::make_shared<Stretch>(channel.stream);
    if (state_.move) {
      state_.move(lane, channel.stream.get(), receive.buffer, send.buffer, send.bytes);
    } else {
      device.Copy(channel.stream.get(), receive.buffer, send.buffer, send.bytes);
    }
    stretch->End();
    send.event->Issue(stretch, after);
    receive.event->Issue(stretch, std::move(after));
  }

  EventPtr Meet(int group, std::vector<DeviceSummand> mine, std::span<const EventPtr> after) {
    for (const EventPtr& event : after) Issued(event);
    DeviceMeeting& meeting = *state_.meetings[static_cast<size_t>(group)];
    const auto event = std::make_shared<DeviceEvent>(state_.control, WaitingForGroup(rank_, group));
    const std::lock_guard lock(meeting.mutex);
    const int64_t number = meeting.posted[static_cast<size_t>(rank_)]++;
    const auto index = static_cast<size_t>(number - meeting.completed);
    if (meeting.rounds.size() <= index) meeting.rounds.resize(index + 1);
    DeviceRound& round = meeting.rounds[index];
    round.summands.insert(round.summands.end(), mine.begin(), mine.end());
    round.events.push_back(event);
    round.after.insert(round.after.end(), after.begin(), after.end());
    if (round.events.size() < meeting.members) return event;
    // The last member to come has it done; rounds are completed in order since every member's
    // earlier round came before.
    std::sort(round.summands.begin(), round.summands.end(),
              [](const DeviceSummand& a, const DeviceSummand& b) { return a.place < b.place; });
    ComputeDevice& device = meeting.stream.device();
    for (const EventPtr& one : round.after) MakeFollow(device, meeting.stream.get(), one);
    const auto stretch = std::make_shared<Stretch>(meeting.stream);
    Sum(meeting, round, &DeviceSummand::values);
    Sum(meeting, round, &DeviceSummand::gradients);
    stretch->End();
    for (const auto& one : round.events) one->Issue(stretch, round.after);
    meeting.rounds.pop_front();
    ++meeting.completed;
    return event;
  }

  /// Replaces every summand by ((first + second) + third) …, as AddUp does.
  template <class Values>
  void Sum(DeviceMeeting& meeting, const DeviceRound& round, Values DeviceSummand::*of) {
    const auto sum = round.summands.front().*of;
    if (sum.empty()) return;
    ComputeDevice& device = meeting.stream.device();
    const Stream stream = meeting.stream.get();
    for (size_t k = 1; k < round.summands.size(); ++k) {
      const auto values = round.summands[k].*of;
      CHECK(values.size() == sum.size());
      const ComputeDevice& home =
          state_.clocks[static_cast<size_t>(round.summands[k].rank)]->device();
      const auto* reached = values.data();
      if (&home != &device && !device.Reaches(home)) {
        reached = Nearby(meeting, values);
      }
      device.Add(stream, sum.data(), reached, static_cast<int64_t>(sum.size()));
    }
    for (size_t k = 1; k < round.summands.size(); ++k) {
      device.Copy(stream, (round.summands[k].*of).data(), sum.data(), sum.size_bytes());
    }
  }

  /// A copy of them on the group's device.
  template <class Value>
  const Value* Nearby(DeviceMeeting& meeting, std::span<Value> values) {
    ComputeDevice& device = meeting.stream.device();
    if (meeting.scratch_bytes < values.size_bytes()) {
      meeting.scratch = DeviceMemory(device, values.size_bytes());
      meeting.scratch_bytes = values.size_bytes();
    }
    device.Copy(meeting.stream.get(), meeting.scratch.get(), values.data(), values.size_bytes());
    return reinterpret_cast<const Value*>(meeting.scratch.get());
  }

  DeviceHub::State& state_;
  int rank_;
};

}  // namespace

DeviceHub::DeviceHub(const Program& program, const RunControl& control,
                     const std::vector<DeviceClock*>& clocks, MoveMessage move)
    : state_(new State{program, control, clocks, std::move(move), {}, {}}) {
  const auto stream_of = [&](int rank) {
    return TimedStream(*clocks[static_cast<size_t>(rank)], true);
  };
  for (const Lane& lane : program.lanes()) {
    state_->channels.push_back(std::make_unique<DeviceChannel>(stream_of(lane.sender)));
  }
  const Schedule& schedule = program.schedule();
  for (const CollectiveGroup& group : schedule.groups) {
    const std::vector<int> ranks = RanksOf(schedule, group);
    int first = ranks.front();
    if (group.purpose == CollectiveGroup::Purpose::kWeights) {
      const int stage = *std::min_element(group.stages.begin(), group.stages.end());
      first = schedule.placement[static_cast<size_t>(stage)];
    }
    state_->meetings.push_back(std::make_unique<DeviceMeeting>(stream_of(first)));
    state_->meetings.back()->members = ranks.size();
    state_->meetings.back()->posted.resize(static_cast<size_t>(schedule.ranks));
  }
}

DeviceHub::~DeviceHub() = default;

std::unique_ptr<Transport> DeviceHub::End(int rank) {
  return std::make_unique<DeviceHubEnd>(*state_, rank);
}

}  // namespace pipelag
