// Routes of lanes and rounds of collectives.
#include "sim/contended_layout.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/error.h"

namespace pipelag {
namespace {

using Purpose = CollectiveGroup::Purpose;

/// What one AR reduces: holders of the same weights reduce one copy, others everything they hold.
Bytes BytesOf(const Schedule& schedule, const CollectiveGroup& group,
              const NetworkOptions& options) {
  Bytes bytes = 0;
  for (const int stage : group.stages) {
    const auto slice = static_cast<size_t>(schedule.SliceOf(stage));
    const Bytes of_stage = options.gradient_bytes[slice];
    bytes = group.purpose == Purpose::kWeights ? std::max(bytes, of_stage) : bytes + of_stage;
  }
  return bytes;
}

void CheckOptions(const Schedule& schedule, const NetworkOptions& options) {
  if (options.replicas < 1) {
    throw Error(fmt::format("--replicas must be at least 1, not {}", options.replicas));
  }
  const int64_t needed = int64_t{options.replicas} * schedule.ranks;
  if (options.cluster->ranks() < needed) {
    throw Error(fmt::format("the cluster {} holds {} ranks, but {} replicas of {} ranks need {}",
                            options.cluster->name(), options.cluster->ranks(), options.replicas,
                            schedule.ranks, needed));
  }
  const size_t sizes = options.gradient_bytes.size();
  if (sizes != 0 && sizes != static_cast<size_t>(schedule.stages)) {
    throw Error(fmt::format("the gradients of {} stages are given, but the schedule has {}", sizes,
                            schedule.stages));
  }
}

}  // namespace

ContendedLayout::ContendedLayout(const Program& program, Bytes bytes_per_message,
                                 const NetworkOptions& options)
    : replicas(options.replicas) {
  const Schedule& schedule = program.schedule();
  CHECK(options.cluster != nullptr);
  CheckOptions(schedule, options);
  channels = options.cluster->channels();
  for (int replica = 0; replica < replicas; ++replica) {
    const int base = replica * schedule.ranks;
    for (const Lane& lane : program.lanes()) {
      lane_routes.push_back(Know(*options.cluster, base + lane.sender, base + lane.receiver));
    }
  }
  lane_bytes.assign(lane_routes.size(), bytes_per_message);
  AddCollectives(schedule, options);
}

ContendedLayout::ContendedLayout(const Program& program, const ActionTimes& times,
                                 int replicas_of_run, int64_t cores_of_run)
    : replicas(replicas_of_run), cores(cores_of_run) {
  constexpr Bandwidth kBytePerNanosecond{1'000'000'000};
  const auto lanes = static_cast<int>(program.lanes().size());
  for (int i = 0; i < replicas * lanes; ++i) {
    const LinkTime& takes = times.OfMessage(i % lanes);
    channels.push_back(kBytePerNanosecond);
    routes.push_back({{i}, Nanoseconds{takes.latency}, 1});
    lane_routes.push_back(i);
    lane_bytes.push_back(takes.occupancy);
  }
  AddCollectives(program.schedule(), {.replicas = replicas});
}

LinkTime ContendedLayout::Alone(const Route& route, Bytes bytes) const {
  LinkTime takes{0, route.latency.count()};
  for (const int channel : route.channels) {
    const Bandwidth bandwidth = channels[static_cast<size_t>(channel)];
    takes.occupancy = std::max(takes.occupancy, TransferTime(bytes, bandwidth).count());
  }
  return takes;
}

int64_t ContendedLayout::Alone(const Collective& collective, int64_t given) const {
  int64_t time = collective.timed ? given : 0;
  for (const CollectiveRound& round : collective.rounds) {
    int64_t longest = 0;
    for (const CollectiveMessage& message : round.messages) {
      const LinkTime takes = Alone(RouteOf(message.sender, message.receiver), message.bytes);
      longest = std::max(longest, takes.occupancy + takes.latency);
    }
    time += round.repeats * longest;
  }
  return time;
}

std::optional<ActionTimes> ContendedLayout::TimesAlone(const Program& program,
                                                       const ActionTimes& times) const {
  const size_t lanes = program.lanes().size();
  std::vector<LinkTime> links;
  for (size_t i = 0; i < lane_routes.size(); ++i) {
    const Route& route = routes[static_cast<size_t>(lane_routes[i])];
    const LinkTime takes = Alone(route, lane_bytes[i]);
    if (i < lanes) links.push_back(takes);
    if (takes != links[i % lanes]) return std::nullopt;
  }
  std::vector<int64_t> groups;
  for (size_t g = 0; g < of_group_.size(); ++g) {
    const auto group = static_cast<int>(g);
    for (int replica = 0; replica < replicas; ++replica) {
      const auto index = static_cast<size_t>(CollectiveOf(group, replica));
      const int64_t takes = Alone(collectives[index], times.OfReduction(group));
      if (replica == 0) groups.push_back(takes);
      if (takes != groups[g]) return std::nullopt;
    }
  }
  ActionTimes alone = times;
  alone.ReplaceLinks(std::move(links), program);
  alone.ReplaceReductions(std::move(groups), program);
  return alone;
}

bool ContendedLayout::MayShare() const {
  const auto moves = [](const Collective& collective) { return !collective.rounds.empty(); };
  if (std::any_of(collectives.begin(), collectives.end(), moves)) return true;
  std::vector<bool> used(channels.size());
  for (const int route : lane_routes) {
    for (const int channel : routes[static_cast<size_t>(route)].channels) {
      if (used[static_cast<size_t>(channel)]) return true;
      used[static_cast<size_t>(channel)] = true;
    }
  }
  return false;
}

int ContendedLayout::Know(const Cluster& cluster, int sender, int receiver) {
  const auto [entry, fresh] =
      known_.try_emplace({sender, receiver}, static_cast<int>(routes.size()));
  if (fresh) routes.push_back(cluster.RouteBetween(sender, receiver));
  return entry->second;
}

void ContendedLayout::AddCollectives(const Schedule& schedule, const NetworkOptions& options) {
  groups_of.resize(static_cast<size_t>(schedule.placed_stages()));
  for (size_t g = 0; g < schedule.groups.size(); ++g) {
    AddCollective(schedule, options, static_cast<int>(g));
    for (const int stage : schedule.groups[g].stages) {
      groups_of[static_cast<size_t>(stage)].push_back(static_cast<int>(g));
    }
  }
}

void ContendedLayout::AddCollective(const Schedule& schedule, const NetworkOptions& options,
                                    int index) {
  const CollectiveGroup& group = schedule.groups[static_cast<size_t>(index)];
  const bool shared = MovesGradients(group);
  of_group_.push_back({static_cast<int>(collectives.size()), !shared});
  const bool norm = group.purpose == Purpose::kNorm && options.norm_bytes > 0;
  const bool moves = norm || (shared && !options.gradient_bytes.empty());
  for (int first = 0; first < replicas; ++first) {
    Collective collective;
    collective.group = index;
    collective.timed = !moves;
    const int last = shared ? replicas : first + 1;
    for (int replica = first; replica < last; ++replica) {
      for (const int stage : group.stages) {
        collective.members.push_back(replica * schedule.ranks +
                                     schedule.placement[static_cast<size_t>(stage)]);
      }
    }
    const auto updates = static_cast<int64_t>(collective.members.size());
    collective.updates = updates;
    collective.gradients = updates * schedule.microbatches_per_stream();
    auto& members = collective.members;
    std::sort(members.begin(), members.end());
    members.erase(std::unique(members.begin(), members.end()), members.end());
    if (moves) {
      std::vector<int> nodes;
      for (const int member : members) nodes.push_back(options.cluster->NodeOf(member));
      collective.rounds =
          AllReduceRounds(norm ? ReductionAlgorithm::kTree : options.algorithm, members, nodes,
                          norm ? options.norm_bytes : BytesOf(schedule, group, options));
      for (const CollectiveRound& round : collective.rounds) {
        for (const CollectiveMessage& message : round.messages) {
          Know(*options.cluster, message.sender, message.receiver);
        }
      }
    }
    collectives.push_back(std::move(collective));
    if (shared) break;
  }
}

}  // namespace pipelag
