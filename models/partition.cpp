// The dynamic program for ranks of one stage each, and what a given split comes to.
#include "models/partition.h"

#include <fmt/format.h>

#include <limits>

#include "models/error.h"
#include "models/partition_load.h"
#include "models/schedule/slots.h"

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
    const auto [least, most] =
        std::minmax({part.memory.weights, part.memory.gradients, part.memory.optimizer,
                     part.memory.activation, part.memory.message});
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
  sums(more_after_input_,
       [](const NetworkPart& part) { return std::max<Bytes>(0, -part.memory.freed_at_input); });
  shortest_.assign(parts.size() + 1, std::numeric_limits<int64_t>::max());
  for (size_t i = parts.size() - 1; i-- > 0;) {
    shortest_[i] = shortest_[i + 1];
    if (parts[i].layer) shortest_[i] = std::min(shortest_[i], parts[i].Time().count());
  }
  for (const NetworkPart& part : parts) {
    message_.push_back(part.memory.message);
    cut_time_.push_back(TransferTime(2 * part.memory.message, setting.bandwidth).count());
  }
  if (layers_.back() < setting.stages) {
    throw Error(fmt::format("{} stages cannot share {} layers: every stage needs at least one",
                            setting.stages, layers_.back()));
  }
  const auto stages = static_cast<size_t>(setting.stages);
  CHECK(stages > 0 && !setting.places.empty() && setting.places.size() % stages == 0);
  places_of_.resize(stages);
  crosses_.assign(stages, false);
  std::vector<int> held(static_cast<size_t>(setting.ranks));
  for (size_t placed = 0; placed < setting.places.size(); ++placed) {
    const StagePlace& place = setting.places[placed];
    places_of_[placed % stages].push_back(&place);
    one_stage_per_rank_ = one_stage_per_rank_ && ++held[static_cast<size_t>(place.rank)] == 1;
    if (placed % stages + 1 == stages) continue;
    if (setting.places[placed + 1].rank != place.rank) crosses_[placed % stages] = true;
  }
}

void FailLeanest(const PartitionSetting& setting, std::string_view what, int rank, Bytes needed) {
  throw Error(fmt::format("{} needs {} on rank {}, {} more than its {}", what, FormatBytes(needed),
                          rank, FormatBytes(needed - setting.memory_limit),
                          FormatBytes(setting.memory_limit)));
}

namespace {

/// Per placed stage: most activations between I and W at once.
std::vector<int> MostAfterInput(const Program& program) {
  const Schedule& schedule = program.schedule();
  std::vector<int> now(static_cast<size_t>(schedule.placed_stages()));
  std::vector<int> most = now;
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    for (LaneWalk walk(program, rank); !walk.done(); walk.Advance()) {
      const RunAction& action = walk.action();
      if (action.kind != ActionKind::kBackwardInput && action.kind != ActionKind::kBackwardWeight) {
        continue;
      }
      int& own = now[static_cast<size_t>(action.stage)];
      own += action.kind == ActionKind::kBackwardInput ? 1 : -1;
      most[static_cast<size_t>(action.stage)] =
          std::max(most[static_cast<size_t>(action.stage)], own);
    }
  }
  return most;
}

}  // namespace

PartitionSetting PartitionSettingOf(const Program& program, Bandwidth bandwidth,
                                    Bytes memory_limit) {
  const Schedule& schedule = program.schedule();
  PartitionSetting setting{.ranks = schedule.ranks,
                           .stages = schedule.stages,
                           .places = {},
                           .bandwidth = bandwidth,
                           .memory_limit = memory_limit};
  const std::vector<int> slots =
      memory_limit > 0 ? NeverDelayingSlots(program) : std::vector<int>(program.lanes().size());
  const std::vector<int> after_input = MostAfterInput(program);
  for (int placed = 0; placed < schedule.placed_stages(); ++placed) {
    const StageVersions& versions = program.versions(placed);
    StagePlace place{.rank = schedule.placement[static_cast<size_t>(placed)],
                     .in_flight = program.PeakInFlight(placed),
                     .after_input = after_input[static_cast<size_t>(placed)],
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
  partition.rank_memory.resize(static_cast<size_t>(setting.ranks));
  int64_t bottleneck = 0;
  for (int s = 0; s < setting.stages; ++s) {
    const LayerRange& range = stages[static_cast<size_t>(s)];
    CHECK(range.last > range.first);
    for (const StagePlace* place : load.PlacesOf(s)) {
      const auto rank = static_cast<size_t>(place->rank);
      partition.rank_time[rank] += Nanoseconds{load.Time(range.first, range.last)};
      partition.rank_memory[rank] += load.Memory(*place, range.first, range.last);
    }
    if (s + 1 < setting.stages) bottleneck = std::max(bottleneck, load.CutTime(s, range.last));
  }
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
