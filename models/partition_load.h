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
  /// Of parts [first, last) as the placed stage.
  Bytes Memory(const StagePlace& place, int first, int last) const {
    Bytes bytes = Between(weights_, first, last) * place.weight_versions +
                  Between(gradients_, first, last) * place.gradient_buffers +
                  Between(optimizer_, first, last) +
                  Between(activation_, first, last) * place.in_flight +
                  Between(more_after_input_, first, last) * place.after_input;
    if (first > 0) bytes += Message(first) * place.forward_slots;
    if (last < parts()) bytes += Message(last) * place.backward_slots;
    return bytes;
  }
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

  const PartitionSetting& setting_;
  std::vector<int64_t> time_;
  std::vector<int64_t> layers_;
  std::vector<int64_t> weights_;
  std::vector<int64_t> gradients_;
  std::vector<int64_t> optimizer_;
  std::vector<int64_t> activation_;
  std::vector<int64_t> more_after_input_;
  std::vector<Bytes> message_;
  std::vector<int64_t> cut_time_;
  std::vector<int64_t> shortest_;
  std::vector<bool> crosses_;
  std::vector<std::vector<const StagePlace*>> places_of_;
  bool one_stage_per_rank_ = true;
};

/// The same as BestPartition for ranks of several stages.
Partition SearchPartition(const std::vector<NetworkPart>& parts, const PartitionLoad& load);

/// What no search found: no split fits the memory.
[[noreturn]] void FailLeanest(const PartitionSetting& setting, std::string_view what, int rank,
                              Bytes needed);

}  // namespace pipelag
