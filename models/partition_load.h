// What any slice of the parts asks of a rank, in constant time: prefix sums. Knows no search.
#pragma once

#include <algorithm>
#include <string_view>
#include <vector>

#include "models/partition.h"

namespace pipelag {

class PartitionLoad {
 public:
  /// Throws Error for sizes and times out of range, and if there are more stages than layers.
  PartitionLoad(const std::vector<NetworkPart>& parts, const PartitionSetting& setting);

  int parts() const { return static_cast<int>(cut_time_.size()); }
  int stages() const { return setting_.stages; }
  const PartitionSetting& setting() const { return setting_; }

  int64_t Time(int first, int last) const { return Between(time_, first, last); }
  int Layers(int first, int last) const { return static_cast<int>(Between(layers_, first, last)); }
  /// Of parts [first, last) as the placed stage, whatever runs.
  Bytes Standing(const StagePlace& place, int first, int last) const {
    Bytes bytes = Between(weights_, first, last) * place.weight_versions +
                  Between(gradients_, first, last) * place.gradient_buffers +
                  Between(optimizer_, first, last);
    if (alike_) return bytes;
    if (first > 0) bytes += Message(first) * place.forward_slots;
    if (last < parts()) bytes += Message(last) * place.backward_slots;
    return bytes;
  }
  /// Activations at one of the rank's fullest moments.
  Bytes Held(const StagePlace& place, size_t moment, int first, int last) const {
    const ActivationCounts& held = place.held[moment];
    return Between(activation_, first, last) * (held.whole + held.after_input) -
           Between(freed_, first, last) * held.after_input;
  }
  /// Beside them while anything runs; of a rank's stages the largest.
  Bytes Workspace(int first, int last) const {
    const auto blocks = std::max<int64_t>(1, Between(blocks_, first, last));
    return LargestWorkspace(first, last) + Between(gathered_, first, last) / blocks;
  }
  /// Of a rank, whatever it gets.
  Bytes Slots(int rank) const {
    return alike_ ? rank_slots_[static_cast<size_t>(rank)] * message_.front() : 0;
  }
  /// Of a rank's only stage.
  Bytes Memory(const StagePlace& place, int first, int last) const {
    Bytes most = 0;
    for (size_t moment = 0; moment < place.held.size(); ++moment) {
      most = std::max(most, Held(place, moment, first, last));
    }
    return most + Slots(place.rank) + Standing(place, first, last) + Workspace(first, last);
  }
  /// Fullest moments of each rank.
  const std::vector<size_t>& moments() const { return moments_; }
  Bytes Message(int cut) const { return message_[static_cast<size_t>(cut - 1)]; }
  /// Of the messages over a cut before part `cut`, between stage `stage` and the one behind it; 0
  /// where these share a rank in every stream.
  int64_t CutTime(int stage, int cut) const {
    return crosses_[static_cast<size_t>(stage)] ? cut_time_[static_cast<size_t>(cut - 1)] : 0;
  }
  /// The least time of a layer at or behind part `first`, but before the last part.
  int64_t ShortestLayer(int first) const { return shortest_[static_cast<size_t>(first)]; }
  /// Placed stages of each slice.
  const std::vector<const StagePlace*>& PlacesOf(int stage) const {
    return places_of_[static_cast<size_t>(stage)];
  }
  /// Whether no rank holds two placed stages.
  bool one_stage_per_rank() const { return one_stage_per_rank_; }

 private:
  static int64_t Between(const std::vector<int64_t>& sums, int first, int last) {
    return sums[static_cast<size_t>(last)] - sums[static_cast<size_t>(first)];
  }

  Bytes LargestWorkspace(int first, int last) const;

  const PartitionSetting& setting_;
  std::vector<int64_t> time_;
  std::vector<int64_t> layers_;
  std::vector<int64_t> weights_;
  std::vector<int64_t> gradients_;
  std::vector<int64_t> optimizer_;
  std::vector<int64_t> activation_;
  std::vector<int64_t> freed_;
  std::vector<int64_t> gathered_;
  std::vector<int64_t> blocks_;
  std::vector<std::vector<Bytes>> workspace_;  ///< the largest of 2^k parts from one on
  std::vector<int64_t> rank_slots_;
  std::vector<size_t> moments_;
  bool alike_ = false;  ///< all messages, and known how many a rank holds
  std::vector<Bytes> message_;
  std::vector<int64_t> cut_time_;
  std::vector<int64_t> shortest_;
  std::vector<bool> crosses_;
  std::vector<std::vector<const StagePlace*>> places_of_;
  bool one_stage_per_rank_ = true;
};

/// What a rank needs of memory, stage by stage.
class RankLoad {
 public:
  RankLoad(const PartitionLoad& load, int rank)
      : at_(load.moments()[static_cast<size_t>(rank)], load.Slots(rank)) {}

  void Add(const PartitionLoad& load, const StagePlace& place, int first, int last) {
    const Bytes standing = load.Standing(place, first, last);
    for (size_t moment = 0; moment < at_.size(); ++moment) {
      at_[moment] += standing + load.Held(place, moment, first, last);
    }
    workspace_ = std::max(workspace_, load.Workspace(first, last));
  }
  Bytes Peak() const {
    Bytes most = 0;
    for (const Bytes bytes : at_) most = std::max(most, bytes);
    return most + workspace_;
  }
  /// Whether it stays so whatever both get besides.
  bool NeverMoreThan(const RankLoad& other) const {
    for (size_t moment = 0; moment < at_.size(); ++moment) {
      if (at_[moment] > other.at_[moment] ||
          at_[moment] + workspace_ > other.at_[moment] + other.workspace_) {
        return false;
      }
    }
    return true;
  }
  /// Of a rank that gets nothing more, and fits.
  void Forget() {
    std::fill(at_.begin(), at_.end(), 0);
    workspace_ = 0;
  }

 private:
  std::vector<Bytes> at_;  ///< the rank's fullest moments
  Bytes workspace_ = 0;
};

/// The same as BestPartition for ranks of several stages.
Partition SearchPartition(const std::vector<NetworkPart>& parts, const PartitionLoad& load);

/// What no search found: no split fits the memory.
[[noreturn]] void FailLeanest(const PartitionSetting& setting, std::string_view what, int rank,
                              Bytes needed);

}  // namespace pipelag
