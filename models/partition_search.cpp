// The search for ranks of several stages. A rank's time is then a sum over slices far apart, so
// that no table over (stage, first part) holds what matters; instead beginnings of a split are
// kept, each with the times of its ranks, and those dropped that another one is never worse than.
#include <functional>
#include <limits>
#include <optional>

#include "models/error.h"
#include "models/partition.h"
#include "models/partition_load.h"

namespace pipelag {
namespace {

__extension__ using Wide = unsigned __int128;

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();
/// Kept beginnings of as many stages and parts, and of all in one question.
constexpr size_t kMostAlike = 64;
constexpr int64_t kMostBeginnings = 30'000;

/// The first stages of a split, up to part `last`.
struct Beginning {
  int last = 0;
  int before = -1;               ///< the beginning without the last of its stages
  std::vector<int64_t> time;     ///< per rank; 0 once it gets nothing more
  std::vector<RankLoad> memory;  ///< per rank; empty: there is no limit
  Wide squares = 0;              ///< of its stages' times, added

  bool NeverWorseThan(const Beginning& other) const {
    for (size_t rank = 0; rank < time.size(); ++rank) {
      if (time[rank] > other.time[rank]) return false;
    }
    for (size_t rank = 0; rank < memory.size(); ++rank) {
      if (!memory[rank].NeverMoreThan(other.memory[rank])) return false;
    }
    return true;
  }
  Bytes Fullest() const {
    Bytes most = 0;
    for (const RankLoad& rank : memory) most = std::max(most, rank.Peak());
    return most;
  }
};

struct Answer {
  std::vector<LayerRange> stages;  ///< empty: none found
  bool complete = true;            ///< nothing was left out of the search
};

auto Fullest(const Partition& partition) {
  return std::max_element(partition.rank_memory.begin(), partition.rank_memory.end());
}

class Search {
 public:
  Search(const std::vector<NetworkPart>& parts, const PartitionLoad& load)
      : parts_(parts), load_(load), last_stage_(static_cast<size_t>(load.setting().ranks)) {
    for (int stage = 0; stage < load.stages(); ++stage) {
      for (const StagePlace* place : load.PlacesOf(stage)) {
        last_stage_[static_cast<size_t>(place->rank)] = stage;
      }
    }
    ending_first_ = load.parts() - 1;
    while (ending_first_ > 0 && !parts[static_cast<size_t>(ending_first_ - 1)].layer) {
      --ending_first_;
    }
    ending_ = load.Time(ending_first_, load.parts());
    ends_.resize(last_stage_.size());
    for (const StagePlace* place : load.PlacesOf(load.stages() - 1)) {
      ends_[static_cast<size_t>(place->rank)] = true;
    }
  }

  Partition Solve() {
    const Bytes limit = load_.setting().memory_limit;
    const Partition fastest = Solve(*Even(kUnlimited), kUnlimited);
    if (limit == 0 || *Fullest(fastest) <= limit) return fastest;
    std::optional<Partition> first = Even(limit);
    if (!first) first = Assessed(Find(kUnlimited, limit).stages, limit);
    if (!first) first = Assessed(Leanest().stages, limit);
    if (!first) FailForMemory();
    return Solve(*std::move(first), limit);
  }

 private:
  /// From one that fits.
  Partition Solve(Partition first, Bytes limit) const {
    Partition best = *Polished(std::move(first.stages), limit);
    bool proven = true;
    int64_t beaten = LowerBound() - 1;  // no split is as good as this
    while (best.bottleneck.count() - beaten > 1) {
      const int64_t wanted = beaten + (best.bottleneck.count() - beaten) / 2;
      const Answer answer = Find(wanted, limit);
      if (const auto found = Polished(answer.stages, limit)) {
        best = *found;
      } else {
        beaten = wanted;
        proven = proven && answer.complete;
      }
    }
    best.proven = proven;
    return best;
  }

  int64_t streams() const { return static_cast<int64_t>(load_.PlacesOf(0).size()); }

  int64_t LowerBound() const {
    const int64_t all = load_.Time(0, load_.parts()) * streams();
    return (all + load_.setting().ranks - 1) / load_.setting().ranks;
  }

  std::optional<Partition> Even(Bytes limit) const {
    const int layers = load_.Layers(0, load_.parts());
    std::vector<int> counts;
    for (const LayerRange& range : SplitLayers(layers, load_.stages())) {
      counts.push_back(range.last - range.first);
    }
    return Assessed(PartitionByCounts(parts_, counts), limit);
  }

  std::optional<Partition> Assessed(std::vector<LayerRange> stages, Bytes limit) const {
    if (stages.empty()) return std::nullopt;
    Partition partition = AssessPartition(parts_, std::move(stages), load_.setting());
    for (const Bytes memory : partition.rank_memory) {
      if (memory > limit) return std::nullopt;
    }
    return partition;
  }

  Wide SquareOf(int first, int last) const {
    const auto time = static_cast<Wide>(load_.Time(first, last));
    return time * time;
  }

  Wide Squares(const std::vector<LayerRange>& stages) const {
    Wide sum = 0;
    for (const LayerRange& range : stages) sum += SquareOf(range.first, range.last);
    return sum;
  }

  /// Moves single cuts by single parts while that makes the split better.
  std::optional<Partition> Polished(std::vector<LayerRange> stages, Bytes limit) const {
    std::optional<Partition> best = Assessed(std::move(stages), limit);
    if (!best) return best;
    for (bool better = true; better;) {
      better = false;
      ForEachMove(best->stages, [&](std::vector<LayerRange> moved) {
        auto other = Assessed(std::move(moved), limit);
        if (!other || std::pair(other->bottleneck, Squares(other->stages)) >=
                          std::pair(best->bottleneck, Squares(best->stages))) {
          return false;
        }
        best = std::move(other);
        return better = true;
      });
    }
    return best;
  }

  /// A split whose ranks keep to both limits.
  Answer Find(int64_t time_limit, Bytes memory_limit) const {
    Answer answer;
    std::vector<std::vector<Beginning>> kept(static_cast<size_t>(load_.stages()) + 1);
    Beginning none{0, -1, std::vector<int64_t>(static_cast<size_t>(load_.setting().ranks)), {}, 0};
    for (int rank = 0; memory_limit != kUnlimited && rank < load_.setting().ranks; ++rank) {
      none.memory.emplace_back(load_, rank);
    }
    kept[0].push_back(std::move(none));
    int64_t beginnings = 0;
    for (int stage = 0; stage < load_.stages(); ++stage) {
      const std::vector<Beginning>& from = kept[static_cast<size_t>(stage)];
      std::vector<std::vector<Beginning>> by_last(static_cast<size_t>(load_.parts()) + 1);
      for (size_t i = 0; i < from.size(); ++i) {
        if (++beginnings > kMostBeginnings) {
          answer.complete = false;
          break;
        }
        Extend(stage, from[i], static_cast<int>(i), time_limit, memory_limit, by_last);
      }
      for (std::vector<Beginning>& alike : by_last) {
        answer.complete = Prune(alike) && answer.complete;
        auto& next = kept[static_cast<size_t>(stage) + 1];
        std::move(alike.begin(), alike.end(), std::back_inserter(next));
      }
    }
    if (kept.back().empty()) return answer;
    int at = 0;  // the flattest of those that reach the end
    for (size_t stage = kept.size() - 1; stage > 0; --stage) {
      const Beginning& own = kept[stage][static_cast<size_t>(at)];
      const Beginning& before = kept[stage - 1][static_cast<size_t>(own.before)];
      answer.stages.push_back({before.last, own.last});
      at = own.before;
    }
    std::reverse(answer.stages.begin(), answer.stages.end());
    return answer;
  }

  void Extend(int stage, const Beginning& from, int index, int64_t time_limit, Bytes memory_limit,
              std::vector<std::vector<Beginning>>& by_last) const {
    const int behind = load_.stages() - 1 - stage;
    int last = behind == 0 ? load_.parts() : from.last + 1;
    for (; last <= load_.parts() && load_.Layers(last, load_.parts()) >= behind; ++last) {
      if (load_.Layers(from.last, last) < 1) continue;
      if (behind > 0 && load_.CutTime(stage, last) > time_limit) continue;
      Beginning own{last, index, from.time, from.memory, from.squares + SquareOf(from.last, last)};
      bool fits = true;
      bool in_time = true;
      for (const StagePlace* place : load_.PlacesOf(stage)) {
        const auto rank = static_cast<size_t>(place->rank);
        own.time[rank] += load_.Time(from.last, last);
        in_time = in_time && own.time[rank] <= time_limit;
        if (own.memory.empty()) continue;
        own.memory[rank].Add(load_, *place, from.last, last);
        fits = fits && own.memory[rank].Peak() <= memory_limit;
      }
      if (!in_time) return;  // and more so with more parts
      if (!fits || !RestCanFit(own, stage, time_limit)) continue;
      Close(own, stage);
      by_last[static_cast<size_t>(last)].push_back(std::move(own));
    }
  }

  /// Whether the ranks that get more have room for it, by time and by number of layers.
  bool RestCanFit(const Beginning& own, int stage, int64_t time_limit) const {
    if (time_limit == kUnlimited) return true;
    if (stage + 1 == load_.stages()) return true;
    const int64_t shortest = load_.ShortestLayer(own.last);
    int64_t room = 0;
    int64_t layers = 0;
    for (size_t rank = 0; rank < own.time.size(); ++rank) {
      if (last_stage_[rank] <= stage) continue;
      // The last part, and what belongs to it, is bound to come here.
      const int64_t left = time_limit - own.time[rank] - (ends_[rank] ? ending_ : 0);
      if (left < 0) return false;
      room += left;
      if (shortest > 0) layers += left / shortest;
    }
    const int64_t rest = load_.Time(own.last, load_.parts()) - ending_;
    if (rest * streams() > room) return false;
    return shortest == 0 || load_.Layers(own.last, ending_first_) * streams() <= layers;
  }

  /// What a rank has that gets nothing more makes no difference.
  void Close(Beginning& own, int stage) const {
    for (const StagePlace* place : load_.PlacesOf(stage)) {
      const auto rank = static_cast<size_t>(place->rank);
      if (last_stage_[rank] != stage) continue;
      own.time[rank] = 0;
      if (!own.memory.empty()) own.memory[rank].Forget();
    }
  }

  /// Of beginnings that end alike, the flattest and the leanest that no such one is never worse
  /// than. False if others are left out.
  static bool Prune(std::vector<Beginning>& alike) {
    std::vector<Beginning> kept;
    bool complete = true;
    const auto keep = [&](const auto& key) {
      std::vector<std::pair<Wide, size_t>> order;
      for (size_t i = 0; i < alike.size(); ++i) order.emplace_back(key(alike[i]), i);
      std::sort(order.begin(), order.end());
      const size_t before = kept.size();
      for (const auto& [rank, i] : order) {
        const bool needless = std::any_of(
            kept.begin(), kept.end(),
            [&, index = i](const Beginning& other) { return other.NeverWorseThan(alike[index]); });
        if (needless) continue;
        if (kept.size() == before + kMostAlike) return false;
        kept.push_back(alike[i]);
      }
      return true;
    };
    complete = keep([](const Beginning& own) { return own.squares; });
    if (!complete && !alike.front().memory.empty()) {
      keep([](const Beginning& own) { return static_cast<Wide>(own.Fullest()); });
    }
    alike = std::move(kept);
    return complete;
  }

  static auto MemoryOrder(const Partition& partition) {
    std::vector<Bytes> memory = partition.rank_memory;
    std::sort(memory.begin(), memory.end(), std::greater<>());
    return memory;
  }

  /// What cannot be made leaner by moving single cuts.
  Partition Leanest() const {
    Partition lean = *Even(kUnlimited);
    for (bool better = true; better;) {
      better = false;
      ForEachMove(lean.stages, [&](std::vector<LayerRange> moved) {
        Partition other = AssessPartition(parts_, std::move(moved), load_.setting());
        if (MemoryOrder(other) >= MemoryOrder(lean)) return false;
        lean = std::move(other);
        return better = true;
      });
    }
    return lean;
  }

  [[noreturn]] void FailForMemory() const {
    const Partition lean = Leanest();
    const auto fullest = Fullest(lean);
    FailLeanest(load_.setting(), "no split was found that fits: the leanest",
                static_cast<int>(fullest - lean.rank_memory.begin()), *fullest);
  }

  /// Every split that differs by one part at one cut, until `take` takes one.
  template <class Take>
  void ForEachMove(const std::vector<LayerRange>& stages, const Take& take) const {
    const std::vector<LayerRange> from = stages;
    for (size_t cut = 1; cut < from.size(); ++cut) {
      for (const int by : {1, -1}) {
        std::vector<LayerRange> moved = from;
        moved[cut - 1].last += by;
        moved[cut].first += by;
        const auto has_layer = [&](const LayerRange& range) {
          return range.last > range.first && load_.Layers(range.first, range.last) >= 1;
        };
        if (has_layer(moved[cut - 1]) && has_layer(moved[cut]) && take(std::move(moved))) return;
      }
    }
  }

  const std::vector<NetworkPart>& parts_;
  const PartitionLoad& load_;
  std::vector<int> last_stage_;  ///< of each rank
  int ending_first_ = 0;         ///< the parts from here on are the last stage's whatever comes
  int64_t ending_ = 0;           ///< their time
  std::vector<bool> ends_;       ///< the ranks that get them
};

}  // namespace

Partition SearchPartition(const std::vector<NetworkPart>& parts, const PartitionLoad& load) {
  return Search(parts, load).Solve();
}

}  // namespace pipelag
