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
  double* squared_norm = nullptr;  // of the sum of the gradients
};

struct DeviceRound {
  std::vector<DeviceSummand> summands;
  std::vector<std::shared_ptr<const DeviceEvent>> events;
  std::vector<EventPtr> after;
};

struct DeviceMeeting {
  DeviceMeeting(TimedStream of_group, size_t summand_bytes)
      : stream(std::move(of_group)),
        norm(stream.device(),
             kNormScratch + stream.device().SquaredNormScratch(
                                static_cast<int64_t>(summand_bytes / sizeof(float)))) {}

  /// Place of what is of use within a norm, behind the norm itself.
  static constexpr size_t kNormScratch = 256;

  TimedStream stream;
  DeviceMemory norm;
  std::mutex mutex;
  size_t members = 0;           // ranks
  std::vector<int64_t> posted;  // by rank
  int64_t completed = 0;
  std::deque<DeviceRound> rounds;  // from `completed` on
  DeviceMemory scratch;            // for two summands, where the device does not reach all
  size_t scratch_bytes = 0;        // of one
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
                    std::make_shared<DeviceEvent>(
                        state_.control,
                        WaitingForMessage(state_.program.schedule(), lane, transfer.send, posted)),
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
    for (const GradientPart& part : parts)
      mine.push_back({part.stage, rank_, {}, part.values, part.squared_norm});
    return Meet(group, std::move(mine), after);
  }

  EventPtr PostAllReduce(int group, std::span<double> values,
                         std::span<const EventPtr> after) override {
    return Meet(group, {{rank_, rank_, values, {}, nullptr}}, after);
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
    const auto event = std::make_shared<DeviceEvent>(
        state_.control, WaitingForGroup(state_.program.schedule(), rank_, group));
    const std::lock_guard lock(meeting.mutex);
    const int64_t number = meeting.posted[static_cast<size_t>(rank_)]++;
    const auto index = static_cast<size_t>(number - meeting.completed);
    if (meeting.rounds.size() <= index) meeting.rounds.resize(index + 1);
    DeviceRound& round = meeting.rounds[index];
    round.summands.insert(round.summands.end(), mine.begin(), mine.end());
    round.events.push_back(event);
    round.after.insert(round.after.end(), after.begin(), after.end());
    if (last_) round.after.push_back(last_);  // one after the other
    last_ = event;
    if (round.events.size() < meeting.members) return event;
    // The last member to come has it done; rounds are completed in order since every member's
    // earlier round came before.
    std::sort(round.summands.begin(), round.summands.end(),
              [](const DeviceSummand& a, const DeviceSummand& b) { return a.place < b.place; });
    ComputeDevice& device = meeting.stream.device();
    for (const EventPtr& one : round.after) MakeFollow(device, meeting.stream.get(), one);
    const auto stretch = std::make_shared<Stretch>(meeting.stream);
    Sum(meeting, round, &DeviceSummand::values, 1);
    Sum(meeting, round, &DeviceSummand::gradients,
        static_cast<size_t>(state_.program.schedule().streams_per_replica()));
    for (const DeviceSummand& one : round.summands) {
      if (one.squared_norm != nullptr) TakeNorm(meeting, round, one.squared_norm);
    }
    stretch->End();
    for (const auto& one : round.events) one->Issue(stretch, round.after);
    meeting.rounds.pop_front();
    ++meeting.completed;
    return event;
  }

  /// Replaces every summand by their sum: every `together` of them are added first, in order, then
  /// those sums likewise.
  template <class Values>
  void Sum(DeviceMeeting& meeting, const DeviceRound& round, Values DeviceSummand::*of,
           size_t together) {
    const auto sum = round.summands.front().*of;
    if (sum.empty()) return;
    const size_t count = round.summands.size();
    for (size_t first = 0; first < count; first += together) {
      for (size_t k = first + 1; k < std::min(first + together, count); ++k) {
        Add(meeting, round, of, first, k);
      }
      if (first > 0) Add(meeting, round, of, 0, first);
    }
    for (size_t k = 1; k < count; ++k) {
      meeting.stream.device().Copy(meeting.stream.get(), (round.summands[k].*of).data(), sum.data(),
                                   sum.size_bytes());
    }
  }

  /// Of the sum of the gradients, to memory of any device.
  void TakeNorm(DeviceMeeting& meeting, const DeviceRound& round, double* norm) {
    ComputeDevice& device = meeting.stream.device();
    const std::span<float> sum = round.summands.front().gradients;
    CHECK(&state_.clocks[static_cast<size_t>(round.summands.front().rank)]->device() == &device);
    auto* const own = reinterpret_cast<double*>(meeting.norm.get());
    device.SquaredNorm(meeting.stream.get(), sum.data(), static_cast<int64_t>(sum.size()),
                       meeting.norm.get() + DeviceMeeting::kNormScratch, own);
    device.Copy(meeting.stream.get(), norm, own, sizeof(double));
  }

  /// Summand `k` to summand `to`. Kernels write to the group's own device only, so a sum that
  /// begins elsewhere is brought there and back.
  template <class Values>
  void Add(DeviceMeeting& meeting, const DeviceRound& round, Values DeviceSummand::*of, size_t to,
           size_t k) {
    const auto sum = round.summands[to].*of;
    const auto values = round.summands[k].*of;
    CHECK(values.size() == sum.size());
    ComputeDevice& device = meeting.stream.device();
    const Stream stream = meeting.stream.get();
    const auto reached = [&](size_t index) {
      const ComputeDevice& home =
          state_.clocks[static_cast<size_t>(round.summands[index].rank)]->device();
      return &home == &device || device.Reaches(home);
    };
    auto* const at = reached(to) ? sum.data() : Nearby(meeting, sum, 0);
    device.Add(stream, at, reached(k) ? values.data() : Nearby(meeting, values, 1),
               static_cast<int64_t>(sum.size()));
    if (at != sum.data()) device.Copy(stream, sum.data(), at, sum.size_bytes());
  }

  /// A copy of them on the group's device, in one of two places.
  template <class Value>
  Value* Nearby(DeviceMeeting& meeting, std::span<Value> values, size_t place) {
    ComputeDevice& device = meeting.stream.device();
    CHECK(values.size_bytes() <= meeting.scratch_bytes);
    std::byte* const at = meeting.scratch.get() + place * meeting.scratch_bytes;
    device.Copy(meeting.stream.get(), at, values.data(), values.size_bytes());
    return reinterpret_cast<Value*>(at);
  }

  DeviceHub::State& state_;
  int rank_;
  EventPtr last_;  // the collective posted last
};

}  // namespace

DeviceHub::DeviceHub(const Program& program, const RunControl& control,
                     const std::vector<DeviceClock*>& clocks,
                     const std::vector<size_t>& summand_bytes, MoveMessage move)
    : state_(new State{program, control, clocks, std::move(move), {}, {}}) {
  const auto stream_of = [&](int rank) {
    return TimedStream(*clocks[static_cast<size_t>(rank)], true);
  };
  for (const Lane& lane : program.lanes()) {
    // Opened now, for the copies.
    clocks[static_cast<size_t>(lane.sender)]->device().Reaches(
        clocks[static_cast<size_t>(lane.receiver)]->device());
    state_->channels.push_back(std::make_unique<DeviceChannel>(stream_of(lane.sender)));
  }
  const Schedule& schedule = program.schedule();
  for (size_t g = 0; g < schedule.groups.size(); ++g) {
    const CollectiveGroup& group = schedule.groups[g];
    const std::vector<int> ranks = RanksOf(schedule, group);
    int first = ranks.front();
    if (AddsGradients(group)) {
      const int stage = *std::min_element(group.stages.begin(), group.stages.end());
      first = schedule.placement[static_cast<size_t>(stage)];
    }
    state_->meetings.push_back(std::make_unique<DeviceMeeting>(stream_of(first), summand_bytes[g]));
    DeviceMeeting& meeting = *state_->meetings.back();
    meeting.members = ranks.size();
    meeting.posted.resize(static_cast<size_t>(schedule.ranks));
    ComputeDevice& device = meeting.stream.device();
    const bool reaches_all = std::all_of(ranks.begin(), ranks.end(), [&](int rank) {
      const ComputeDevice& home = clocks[static_cast<size_t>(rank)]->device();
      return &home == &device || device.Reaches(home);
    });
    if (reaches_all) continue;
    meeting.scratch_bytes = (summand_bytes[g] + 255) / 256 * 256;
    meeting.scratch = DeviceMemory(device, 2 * meeting.scratch_bytes);
  }
}

DeviceHub::~DeviceHub() = default;

std::unique_ptr<Transport> DeviceHub::End(int rank) {
  return std::make_unique<DeviceHubEnd>(*state_, rank);
}

}  // namespace pipelag
