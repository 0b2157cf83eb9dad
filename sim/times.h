// What every action and message of one program takes, in integer nanoseconds: a cost file spread
// over placed stages, groups and lanes.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "models/costs.h"
#include "models/schedule/program.h"

namespace pipelag {

class ActionTimes {
 public:
  /// `reduction`: time of an AR per group (one entry: all groups alike; empty: zero).
  /// Throws Error if `costs` are not for this number of stages, or lack a time that the program
  /// needs.
  ActionTimes(const Program& program, const Costs& costs,
              const std::vector<Nanoseconds>& reduction = {});

  int64_t Of(const RunAction& action) const { return Of(action.kind, action.stage); }
  int64_t Of(ActionKind kind, int placed) const {
    return times_[static_cast<size_t>(kind)][static_cast<size_t>(placed)];
  }
  /// The time given for a pair of F and full B, by the stage of its F; else the sum of the two.
  int64_t OfOverlap(const RunAction& forward, const RunAction& backward) const {
    return OfOverlap(forward.stage, backward.kind, backward.stage);
  }
  int64_t OfOverlap(int forward, ActionKind kind, int backward) const {
    if (kind == ActionKind::kBackward && !overlap_.empty()) {
      return overlap_[static_cast<size_t>(forward)];
    }
    return Of(ActionKind::kForward, forward) + Of(kind, backward);
  }
  int64_t OfReduction(int group) const { return reduction_[static_cast<size_t>(group)]; }

  int64_t occupancy_ns() const { return occupancy_; }
  int64_t latency_ns() const { return latency_; }
  Bytes message_bytes() const { return message_bytes_; }

  /// Compute time per step of the busiest rank.
  Nanoseconds BusyPerStep(const Program& program) const;

 private:
  static constexpr size_t kKinds = static_cast<size_t>(ActionKind::kUpdate) + 1;
  std::array<std::vector<int64_t>, kKinds> times_;
  std::vector<int64_t> overlap_;  ///< per placed stage
  std::vector<int64_t> reduction_;
  int64_t occupancy_ = 0;
  int64_t latency_ = 0;
  Bytes message_bytes_ = 0;
};

}  // namespace pipelag
