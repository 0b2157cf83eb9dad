#include "runtime/device/nccl_transport.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/runnable.h"

namespace pipelag {
namespace {

/// A GPU has 32 queues for its streams, and streams that share one wait for each other's receives.
/// Some are for computing, for the clock and for NCCL itself.
constexpr size_t kMostStreams = 26;

struct Part {
  size_t begin = 0;
  size_t end = 0;
  size_t size() const { return end - begin; }
};

/// Of `count` values, what member `index` of `members` adds up: all but the last of one length, a
/// multiple of 64 values.
Part PartOf(size_t count, size_t index, size_t members) {
  const size_t length = (count / members + 63) / 64 * 64;
  return {std::min(index * length, count),
          index + 1 == members ? count : std::min((index + 1) * length, count)};
}

size_t Aligned(size_t bytes) {
  constexpr size_t kAlignment = DeviceStage::kAlignment;
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

/// Between the places of a part of values.
template <class Value>
size_t StrideOf(const Part& part) {
  return Aligned(part.size() * sizeof(Value));
}

}  // namespace

NcclTransport::NcclTransport(const Program& program, int rank, CollectiveLibrary& library,
                             Rendezvous others, std::vector<size_t> summand_bytes,
                             DeviceClock& clock, RunControl& control)
    : program_(program),
      rank_(rank),
      clock_(clock),
      control_(control),
      others_(std::move(others)),
      summand_bytes_(std::move(summand_bytes)),
      posted_(program.lanes().size()),
      communicators_(library, clock, control, rank) {}

NcclTransport::~NcclTransport() = default;

NcclTransport::Drain::~Drain() {
  constexpr Nanoseconds kPatience = std::chrono::seconds(10);
  if (transport.clock_.device().Drain(kPatience)) return;
  for (auto& [group, scratch] : transport.scratch_) scratch.memory.Abandon();
}

int NcclTransport::NumberOf(int group) const {
  return static_cast<int>(program_.lanes().size()) + group;
}

std::vector<Communicators::Member> NcclTransport::Members() const {
  std::vector<Communicators::Member> members;
  for (size_t i = 0; i < program_.lanes().size(); ++i) {
    const Lane& lane = program_.lanes()[i];
    if (lane.sender != rank_ && lane.receiver != rank_) continue;
    const int peer = lane.sender == rank_ ? lane.receiver : lane.sender;
    members.push_back(
        {static_cast<int>(i),
         {std::min(lane.sender, lane.receiver), std::max(lane.sender, lane.receiver)},
         fmt::format("rank {} waits for rank {} on the lane of {} from rank {} to rank {}", rank_,
                     peer, lane.payload == ActionKind::kSendForward ? "F" : "B", lane.sender,
                     lane.receiver)});
  }
  const Schedule& schedule = program_.schedule();
  for (size_t g = 0; g < schedule.groups.size(); ++g) {
    std::vector<int> ranks = RanksOf(schedule, schedule.groups[g]);
    if (ranks.size() == 1 || std::find(ranks.begin(), ranks.end(), rank_) == ranks.end()) continue;
    members.push_back({NumberOf(static_cast<int>(g)), std::move(ranks),
                       WaitingForGroup(schedule, rank_, static_cast<int>(g))});
  }
  return members;
}

void NcclTransport::Open() {
  const std::vector<Communicators::Member> members = Members();
  if (members.size() > kMostStreams) {
    throw Error(
        fmt::format("--transport nccl: rank {} has {} lanes and groups, and a GPU queues for {} "
                    "beside computing",
                    rank_, members.size(), kMostStreams));
  }
  clock_.device().MakeCurrent();
  for (size_t g = 0; g < program_.schedule().groups.size(); ++g) TakeScratch(static_cast<int>(g));
  if (!scratch_.empty()) Rehearse(scratch_.begin()->second);
  communicators_.Open(members, others_);
}

/// The kernels of sums, once: what is loaded when it is first used may wait for all that runs.
void NcclTransport::Rehearse(const GroupScratch& scratch) {
  ComputeDevice& device = clock_.device();
  const TimedStream stream(clock_, false);
  auto* const doubles = reinterpret_cast<double*>(scratch.parts());
  auto* const floats = reinterpret_cast<float*>(scratch.parts());
  const auto stretch = std::make_shared<Stretch>(stream);
  device.Fill(stream.get(), scratch.parts(), 0, DeviceStage::kAlignment);
  device.Add(stream.get(), doubles, doubles, 1);
  device.Add(stream.get(), floats, floats, 1);
  device.SquaredNorm(stream.get(), floats, 1, scratch.norm(), doubles + 1);
  stretch->End();
  DeviceEvent event(control_, fmt::format("rank {} waits for its device to add", rank_));
  event.Issue(stretch, {});
  event.Wait();
}

void NcclTransport::TakeScratch(int group) {
  const Schedule& schedule = program_.schedule();
  const CollectiveGroup& of = schedule.groups[static_cast<size_t>(group)];
  const std::vector<int> ranks = RanksOf(schedule, of);
  const auto own = std::find(ranks.begin(), ranks.end(), rank_);
  if (own == ranks.end()) return;
  const size_t bytes = summand_bytes_[static_cast<size_t>(group)];
  const auto part_of = [&](size_t count) {
    return PartOf(count, static_cast<size_t>(own - ranks.begin()), ranks.size());
  };
  const size_t stride =
      std::max({StrideOf<float>(part_of(bytes / sizeof(float))),
                StrideOf<double>(part_of(std::max<size_t>(bytes / sizeof(double), 1))),
                DeviceStage::kAlignment});
  const auto floats = static_cast<int64_t>(bytes / sizeof(float));
  const size_t parts_at =
      DeviceStage::kAlignment + Aligned(clock_.device().SquaredNormScratch(floats));
  // Everybody's summands at the most, and their sum.
  const size_t parts_bytes = (of.stages.size() + 1) * stride;
  GroupScratch scratch(DeviceMemory(clock_.device(), parts_at + parts_bytes));
  scratch.parts_at = parts_at;
  scratch.parts_bytes = parts_bytes;
  if (ranks.size() == 1) scratch.alone.emplace(clock_, true);
  scratch_.emplace(group, std::move(scratch));
}

void NcclTransport::Close() { communicators_.Close(); }

EventPtr NcclTransport::Post(const Transfer& transfer, std::span<const EventPtr> after) {
  const Lane& lane = program_.lanes()[static_cast<size_t>(transfer.lane)];
  const int64_t number = posted_[static_cast<size_t>(transfer.lane)]++;
  const auto event = std::make_shared<DeviceEvent>(
      control_, WaitingForMessage(program_.schedule(), lane, transfer.send, number));
  const TimedStream& stream = communicators_.stream(transfer.lane);
  for (const EventPtr& one : after) MakeFollow(clock_.device(), stream.get(), one);
  const auto stretch = std::make_shared<Stretch>(stream);
  const int peer = 1 - communicators_.rank_in(transfer.lane);
  const Communicator::Half half{transfer.send, peer, transfer.buffer, transfer.bytes};
  communicators_.Post(transfer.lane, {&half, 1}, stream.get());
  stretch->End();
  event->Issue(stretch, {after.begin(), after.end()});
  return event;
}

EventPtr NcclTransport::PostGradientSum(int group, const std::vector<GradientPart>& parts,
                                        std::span<const EventPtr> after) {
  const Schedule& schedule = program_.schedule();
  std::map<int, SummandsOf<float>> members;
  for (const int stage : schedule.groups[static_cast<size_t>(group)].stages) {
    const int rank = schedule.placement[static_cast<size_t>(stage)];
    members[rank].rank = rank;
    members[rank].places.push_back(stage);
  }
  std::vector<SummandsOf<float>> ordered;
  for (auto& [rank, of_rank] : members) {
    std::sort(of_rank.places.begin(), of_rank.places.end());
    if (rank == rank_) {
      for (const GradientPart& part : parts) {
        of_rank.own.push_back(part.values.data());
        of_rank.squared_norms.push_back(part.squared_norm);
      }
      CHECK(of_rank.own.size() == of_rank.places.size());
    }
    ordered.push_back(std::move(of_rank));
  }
  return Sum(group, std::move(ordered), parts.front().values.size(),
             static_cast<size_t>(schedule.streams_per_replica()), after);
}

EventPtr NcclTransport::PostAllReduce(int group, std::span<double> values,
                                      std::span<const EventPtr> after) {
  const Schedule& schedule = program_.schedule();
  std::vector<SummandsOf<double>> members;
  for (const int rank : RanksOf(schedule, schedule.groups[static_cast<size_t>(group)])) {
    members.push_back({rank, {rank}, {}, {}});
    if (rank != rank_) continue;
    // Where there is nothing to add, a rank still hears of all others.
    members.back().own = {values.empty() ? reinterpret_cast<double*>(scratch_.at(group).nothing())
                                         : values.data()};
  }
  return Sum(group, std::move(members), std::max<size_t>(values.size(), 1), 1, after);
}

template <class Value>
EventPtr NcclTransport::Sum(int group, std::vector<SummandsOf<Value>> members, size_t count,
                            size_t together, std::span<const EventPtr> after) {
  const std::optional<TimedStream>& alone = scratch_.at(group).alone;
  const TimedStream& stream = alone ? *alone : communicators_.stream(NumberOf(group));
  for (const EventPtr& one : after) MakeFollow(clock_.device(), stream.get(), one);
  if (last_) MakeFollow(clock_.device(), stream.get(), last_);  // one after the other
  const auto event =
      std::make_shared<DeviceEvent>(control_, WaitingForGroup(program_.schedule(), rank_, group));
  const auto stretch = std::make_shared<Stretch>(stream);
  Enqueue(group, stream, members, count, together);
  stretch->End();
  event->Issue(stretch, {after.begin(), after.end()});
  last_ = event;
  return event;
}

template <class Value>
void NcclTransport::Enqueue(int group, const TimedStream& stream,
                            const std::vector<SummandsOf<Value>>& members, size_t count,
                            size_t together) {
  const size_t n = members.size();
  const auto own_place = std::find_if(members.begin(), members.end(),
                                      [&](const auto& of) { return of.rank == rank_; });
  CHECK(own_place != members.end());
  const auto me = static_cast<size_t>(own_place - members.begin());
  const std::vector<Value*>& own = members[me].own;
  const Part mine = PartOf(count, me, n);
  const size_t bytes = mine.size() * sizeof(Value);
  Value* sum = nullptr;
  const std::map<int, Value*> summands = Collect(group, members, me, count, sum);

  ComputeDevice& device = clock_.device();
  if (bytes > 0) {
    // Every `together` of them first, in order, then those sums.
    const auto length = static_cast<int64_t>(mine.size());
    std::vector<Value*> ordered;
    ordered.reserve(summands.size());
    for (const auto& [place, values] : summands) ordered.push_back(values);
    for (size_t first = 0; first < ordered.size(); first += together) {
      for (size_t k = first + 1; k < std::min(first + together, ordered.size()); ++k) {
        device.Add(stream.get(), ordered[first], ordered[k], length);
      }
      if (first > 0) device.Add(stream.get(), ordered[0], ordered[first], length);
    }
    device.Copy(stream.get(), sum, ordered[0], bytes);
    device.Copy(stream.get(), own.front() + mine.begin, sum, bytes);
  }
  std::vector<std::vector<Communicator::Half>> spread(n);
  for (size_t distance = 1; distance < n; ++distance) {
    const size_t to = (me + distance) % n;
    const size_t from = (me + n - distance) % n;
    const Part theirs = PartOf(count, from, n);
    spread[distance] = {
        {true, static_cast<int>(to), sum, bytes},
        {false, static_cast<int>(from), own.front() + theirs.begin, theirs.size() * sizeof(Value)}};
  }
  if (n > 1) communicators_.PostByDistance(NumberOf(group), spread, 2);
  for (size_t k = 1; k < own.size(); ++k) {
    device.Copy(stream.get(), own[k], own.front(), count * sizeof(Value));
  }
  if constexpr (std::is_same_v<Value, float>) {
    for (double* norm : members[me].squared_norms) {
      if (norm == nullptr) continue;
      device.SquaredNorm(stream.get(), own.front(), static_cast<int64_t>(count),
                         scratch_.at(group).norm(), norm);
    }
  }
}

template <class Value>
std::map<int, Value*> NcclTransport::Collect(int group,
                                             const std::vector<SummandsOf<Value>>& members,
                                             size_t me, size_t count, Value*& sum) {
  const size_t n = members.size();
  size_t others = 0;
  size_t most_places = 1;
  for (size_t k = 0; k < n; ++k) {
    most_places = std::max(most_places, members[k].places.size());
    if (k != me) others += members[k].places.size();
  }
  const Part mine = PartOf(count, me, n);
  const size_t stride = StrideOf<Value>(mine);
  const GroupScratch& room = scratch_.at(group);
  CHECK((others + 1) * stride <= room.parts_bytes);
  std::byte* const scratch = room.parts();
  std::map<int, Value*> summands;
  for (size_t k = 0; k < members[me].own.size(); ++k) {
    summands[members[me].places[k]] = members[me].own[k] + mine.begin;
  }
  std::vector<std::vector<Communicator::Half>> exchange(n);
  size_t taken = 0;
  for (size_t distance = 1; distance < n; ++distance) {
    const size_t to = (me + distance) % n;
    const size_t from = (me + n - distance) % n;
    const Part theirs = PartOf(count, to, n);
    for (Value* values : members[me].own) {
      exchange[distance].push_back(
          {true, static_cast<int>(to), values + theirs.begin, theirs.size() * sizeof(Value)});
    }
    for (const int place : members[from].places) {
      auto* const values = reinterpret_cast<Value*>(scratch + taken++ * stride);
      summands[place] = values;
      exchange[distance].push_back(
          {false, static_cast<int>(from), values, mine.size() * sizeof(Value)});
    }
  }
  if (n > 1) communicators_.PostByDistance(NumberOf(group), exchange, 2 * most_places);
  sum = reinterpret_cast<Value*>(scratch + others * stride);
  return summands;
}

}  // namespace pipelag
