// The dynamic program for ranks of one stage each, and what a given split comes to.
#include "models/partition.h"

#include <fmt/format.h>

#include <bit>
#include <limits>

#include "models/error.h"
#include "models/held_memory.h"
#include "models/partition_load.h"

namespace pipelag {
namespace {

__extension__ using Wide = unsigned __int128;

/// Beyond these no sum of a network stays within 64 bits.
constexpr Bytes kMostBytes = Bytes{1} << 40;
constexpr Nanoseconds kMostTime = std::chrono::hours(24);
constexpr std::string_view kNoneFits = "no split fits: even the leanest";
constexpr size_t kMostParts = 100'000;

void CheckParts(const std::vector<NetworkPart>& parts) {
  if (parts.empty() || parts.size() > kMostParts) {
    throw Error(fmt::format("a network of {} layers cannot be split; it must have from 1 to {}",
                            parts.size(), kMostParts));
  }
  for (const NetworkPart& part : parts) {
    const auto [least, most] = std::minmax(
        {part.memory.weights, part.memory.gradients, part.memory.optimizer, part.memory.activation,
         part.memory.message, part.memory.workspace, part.gathered});
    if (least < 0 || most > kMostBytes) {
      throw Error(fmt::format("layer '{}': a size is out of range, it must be from 0 to {}",
                              part.name, FormatBytes(kMostBytes)));
    }
    if (std::min(part.forward, part.backward).count() < 0 ||
        std::max(part.forward, part.backward) > kMostTime) {
      throw Error(fmt::format("layer '{}': a time is out of range", part.name));
    }
  }
}

/// Suffix tables over (stage, first part): the least bottleneck, then the least sum of squares.
class DynamicProgram {
 public:
  explicit DynamicProgram(const PartitionLoad& load)
      : load_(load), parts_(load.parts()), stages_(load.stages()) {}

  Partition Solve(const std::vector<NetworkPart>& parts) {
    constexpr auto kTime = [](const PartitionLoad& of, int, int first, int last) {
      return of.Time(first, last);
    };
    const std::vector<int64_t> bottleneck = LeastGreatest(kTime, true);
    if (bottleneck[0] == kNone) FailForMemory();
    std::vector<LayerRange> stages = Flattest(bottleneck[0]);
    return AssessPartition(parts, std::move(stages), load_.setting());
  }

 private:
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

  size_t At(int stage, int first) const {
    return static_cast<size_t>(stage) * static_cast<size_t>(parts_ + 1) +
           static_cast<size_t>(first);
  }
  const StagePlace& Place(int stage) const { return *load_.PlacesOf(stage).front(); }
  bool Fits(int stage, int first, int last) const {
    const Bytes limit = load_.setting().memory_limit;
    return limit == 0 || load_.Memory(Place(stage), first, last) <= limit;
  }
  int64_t CutAt(int stage, int last) const {
    return stage + 1 < stages_ ? load_.CutTime(stage, last) : 0;
  }
  /// The last part of `stage` where it begins at `first`: the rest of the stages want a layer each.
  template <class Visit>
  void ForEachLast(int stage, int first, const Visit& visit) const {
    const int behind = stages_ - 1 - stage;
    if (behind == 0) {
      if (load_.Layers(first, parts_) >= 1) visit(parts_);
      return;
    }
    for (int last = first + 1; last < parts_ && load_.Layers(last, parts_) >= behind; ++last) {
      if (load_.Layers(first, last) >= 1) visit(last);
    }
  }

  /// Per (stage, first): the least possible greatest cost of that stage and all behind it.
  template <class CostOf>
  std::vector<int64_t> LeastGreatest(const CostOf& cost_of, bool in_memory_and_links) const {
    std::vector<int64_t> least(At(stages_, parts_) + 1, kNone);
    least[At(stages_, parts_)] = 0;
    for (int stage = stages_ - 1; stage >= 0; --stage) {
      for (int first = 0; first < parts_; ++first) {
        int64_t& own = least[At(stage, first)];
        ForEachLast(stage, first, [&](int last) {
          const int64_t rest = least[At(stage + 1, last)];
          if (rest >= own) return;
          if (in_memory_and_links && !Fits(stage, first, last)) return;
          int64_t greatest = std::max(rest, cost_of(load_, stage, first, last));
          if (in_memory_and_links) greatest = std::max(greatest, CutAt(stage, last));
          own = std::min(own, greatest);
        });
      }
    }
    return least;
  }

  std::vector<LayerRange> Flattest(int64_t bottleneck) const {
    const Wide none = ~Wide{0};
    std::vector<Wide> least(At(stages_, parts_) + 1, none);
    std::vector<int> chosen(least.size(), 0);
    least[At(stages_, parts_)] = 0;
    for (int stage = stages_ - 1; stage >= 0; --stage) {
      for (int first = 0; first < parts_; ++first) {
        const size_t here = At(stage, first);
        ForEachLast(stage, first, [&](int last) {
          const Wide rest = least[At(stage + 1, last)];
          const int64_t time = load_.Time(first, last);
          if (rest == none || time > bottleneck || CutAt(stage, last) > bottleneck ||
              !Fits(stage, first, last)) {
            return;
          }
          const Wide sum = rest + static_cast<Wide>(time) * static_cast<Wide>(time);
          if (sum > least[here]) return;  // of equals the later, which has more parts in front
          least[here] = sum;
          chosen[here] = last;
        });
      }
    }
    std::vector<LayerRange> ranges;
    for (int first = 0; first < parts_; first = ranges.back().last) {
      ranges.push_back({first, chosen[At(static_cast<int>(ranges.size()), first)]});
    }
    return ranges;
  }

  [[noreturn]] void FailForMemory() const {
    const auto memory = [&](const PartitionLoad& of, int stage, int first, int last) {
      return of.Memory(Place(stage), first, last);
    };
    const std::vector<int64_t> least = LeastGreatest(memory, false);
    // The first stage on the way of a leanest split that needs all of it.
    int first = 0;
    for (int stage = 0; stage < stages_; ++stage) {
      int next = parts_;
      bool greatest = false;
      ForEachLast(stage, first, [&](int last) {
        const int64_t own = load_.Memory(Place(stage), first, last);
        if (least[At(stage + 1, last)] > least[0] || own > least[0]) return;
        next = last;
        greatest = own == least[0];
      });
      if (greatest) FailLeanest(load_.setting(), kNoneFits, Place(stage).rank, least[0]);
      first = next;
    }
    FailLeanest(load_.setting(), kNoneFits, Place(0).rank, least[0]);
  }

  const PartitionLoad& load_;
  int parts_;
  int stages_;
};

}  // namespace

PartitionLoad::PartitionLoad(const std::vector<NetworkPart>& parts, const PartitionSetting& setting)
    : setting_(setting) {
  CheckParts(parts);
  const auto sums = [&](std::vector<int64_t>& into, const auto& of) {
    into.push_back(0);
    for (const NetworkPart& part : parts) into.push_back(into.back() + of(part));
  };
  sums(time_, [](const NetworkPart& part) { return part.Time().count(); });
  sums(layers_, [](const NetworkPart& part) { return part.layer ? 1 : 0; });
  sums(weights_, [](const NetworkPart& part) { return part.memory.weights; });
  sums(gradients_, [](const NetworkPart& part) { return part.memory.gradients; });
  sums(optimizer_, [](const NetworkPart& part) { return part.memory.optimizer; });
  sums(activation_, [](const NetworkPart& part) { return part.memory.activation; });
  sums(freed_, [](const NetworkPart& part) { return part.memory.freed_at_input; });
  sums(gathered_, [](const NetworkPart& part) { return part.gathered; });
  sums(blocks_, [](const NetworkPart& part) { return part.blocks; });
  workspace_.emplace_back();
  for (const NetworkPart& part : parts) workspace_[0].push_back(part.memory.workspace);
  for (size_t wide = 1; 2 * wide <= parts.size(); wide *= 2) {
    const std::vector<Bytes>& half = workspace_.back();
    std::vector<Bytes> both;
    for (size_t i = 0; i + 2 * wide <= parts.size(); ++i) {
      both.push_back(std::max(half[i], half[i + wide]));
    }
    workspace_.push_back(std::move(both));
  }
  shortest_.assign(parts.size() + 1, std::numeric_limits<int64_t>::max());
  for (size_t i = parts.size() - 1; i-- > 0;) {
    shortest_[i] = shortest_[i + 1];
    if (parts[i].layer) shortest_[i] = std::min(shortest_[i], parts[i].Time().count());
  }
  for (const NetworkPart& part : parts) {
    message_.push_back(part.memory.message);
    cut_time_.push_back(TransferTime(2 * part.memory.message, setting.bandwidth).count());
  }
  alike_ = !setting.rank_slots.empty() &&
           std::all_of(message_.begin(), message_.end() - 1,
                       [&](Bytes message) { return message == message_.front(); });
  rank_slots_.assign(setting.rank_slots.begin(), setting.rank_slots.end());
  if (layers_.back() < setting.stages) {
    throw Error(fmt::format("{} stages cannot share {} layers: every stage needs at least one",
                            setting.stages, layers_.back()));
  }
  const auto stages = static_cast<size_t>(setting.stages);
  CHECK(stages > 0 && !setting.places.empty() && setting.places.size() % stages == 0);
  places_of_.resize(stages);
  crosses_.assign(stages, false);
  std::vector<int> held(static_cast<size_t>(setting.ranks));
  moments_.resize(held.size());
  for (size_t placed = 0; placed < setting.places.size(); ++placed) {
    const StagePlace& place = setting.places[placed];
    places_of_[placed % stages].push_back(&place);
    one_stage_per_rank_ = one_stage_per_rank_ && ++held[static_cast<size_t>(place.rank)] == 1;
    size_t& moments = moments_[static_cast<size_t>(place.rank)];
    CHECK(moments == 0 || moments == place.held.size());
    moments = place.held.size();
    if (placed % stages + 1 == stages) continue;
    if (setting.places[placed + 1].rank != place.rank) crosses_[placed % stages] = true;
  }
}

Bytes PartitionLoad::LargestWorkspace(int first, int last) const {
  const auto width = static_cast<unsigned>(last - first);
  const auto level = static_cast<size_t>(std::bit_width(width) - 1);
  const std::vector<Bytes>& largest = workspace_[level];
  return std::max(largest[static_cast<size_t>(first)],
                  largest[static_cast<size_t>(last) - (size_t{1} << level)]);
}

void FailLeanest(const PartitionSetting& setting, std::string_view what, int rank, Bytes needed) {
  throw Error(fmt::format("{} needs {} on rank {}, {} more than its {}", what, FormatBytes(needed),
                          rank, FormatBytes(needed - setting.memory_limit),
                          FormatBytes(setting.memory_limit)));
}

namespace {

/// Per placed stage what is held at its rank's fullest moments.
std::vector<std::vector<ActivationCounts>> HeldByStage(const HeldMemory& memory,
                                                       int placed_stages) {
  constexpr size_t kMostMoments = 64;
  std::vector<std::vector<ActivationCounts>> held(static_cast<size_t>(placed_stages));
  for (const HeldMemory::Rank& rank : memory.ranks()) {
    for (size_t i = 0; i < rank.stages.size(); ++i) {
      std::vector<ActivationCounts>& own = held[static_cast<size_t>(rank.stages[i])];
      for (const HeldMemory::Held& moment : rank.most) {
        own.push_back({moment.whole[i], moment.after_input[i]});
      }
      if (own.empty()) own.push_back({0, 0});
      if (own.size() <= kMostMoments) continue;
      ActivationCounts most{0, 0};
      for (const ActivationCounts& moment : own) {
        most.whole = std::max(most.whole, moment.whole);
        most.after_input = std::max(most.after_input, moment.after_input);
      }
      own.assign(1, most);
    }
  }
  return held;
}

}  // namespace

PartitionSetting PartitionSettingOf(const Program& program, Bandwidth bandwidth,
                                    Bytes memory_limit) {
  const Schedule& schedule = program.schedule();
  PartitionSetting setting{.ranks = schedule.ranks,
                           .stages = schedule.stages,
                           .places = {},
                           .bandwidth = bandwidth,
                           .memory_limit = memory_limit,
                           .rank_slots = std::vector<int>(static_cast<size_t>(schedule.ranks))};
  const HeldMemory memory(program);
  const std::vector<int> slots =
      memory_limit > 0 ? memory.slots() : std::vector<int>(program.lanes().size());
  for (size_t lane = 0; lane < slots.size(); ++lane) {
    setting.rank_slots[static_cast<size_t>(program.lanes()[lane].receiver)] += slots[lane];
  }
  const auto held_by_stage = HeldByStage(memory, schedule.placed_stages());
  for (int placed = 0; placed < schedule.placed_stages(); ++placed) {
    const StageVersions& versions = program.versions(placed);
    StagePlace place{.rank = schedule.placement[static_cast<size_t>(placed)],
                     .held = held_by_stage[static_cast<size_t>(placed)],
                     .weight_versions = versions.weight_versions,
                     .gradient_buffers = versions.gradient_buffers};
    const auto held = [&](int lane) { return lane < 0 ? 0 : slots[static_cast<size_t>(lane)]; };
    if (!schedule.IsFirst(placed)) place.forward_slots = held(program.ForwardLane(placed - 1));
    if (!schedule.IsLast(placed)) place.backward_slots = held(program.BackwardLane(placed + 1));
    setting.places.push_back(place);
  }
  return setting;
}

Partition AssessPartition(const std::vector<NetworkPart>& parts, std::vector<LayerRange> stages,
                          const PartitionSetting& setting) {
  const PartitionLoad load(parts, setting);
  CHECK(stages.size() == static_cast<size_t>(setting.stages) && stages.front().first == 0 &&
        stages.back().last == load.parts());
  Partition partition;
  partition.rank_time.resize(static_cast<size_t>(setting.ranks));
  int64_t bottleneck = 0;
  std::vector<RankLoad> memory;
  for (int rank = 0; rank < setting.ranks; ++rank) memory.emplace_back(load, rank);
  for (int s = 0; s < setting.stages; ++s) {
    const LayerRange& range = stages[static_cast<size_t>(s)];
    CHECK(range.last > range.first);
    for (const StagePlace* place : load.PlacesOf(s)) {
      const auto rank = static_cast<size_t>(place->rank);
      partition.rank_time[rank] += Nanoseconds{load.Time(range.first, range.last)};
      memory[rank].Add(load, *place, range.first, range.last);
    }
    if (s + 1 < setting.stages) bottleneck = std::max(bottleneck, load.CutTime(s, range.last));
  }
  for (const RankLoad& rank : memory) partition.rank_memory.push_back(rank.Peak());
  for (const Nanoseconds time : partition.rank_time) {
    bottleneck = std::max(bottleneck, time.count());
  }
  partition.bottleneck = Nanoseconds{bottleneck};
  partition.stages = std::move(stages);
  return partition;
}

Partition BestPartition(const std::vector<NetworkPart>& parts, const PartitionSetting& setting) {
  const PartitionLoad load(parts, setting);
  if (!load.one_stage_per_rank()) return SearchPartition(parts, load);
  return DynamicProgram(load).Solve(parts);
}

}  // namespace pipelag
