// What every action and message of one program takes, in integer nanoseconds: a cost file spread
// over placed stages, groups and lanes.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "models/costs.h"
#include "models/schedule/play.h"
#include "models/schedule/program.h"

namespace pipelag {

class ActionTimes {
 public:
  /// `reduction`: time of an AR per group (one entry: all groups alike; empty: zero).
  /// Throws Error if `costs` are not for this number of stages or lack a time that the program
  /// needs, and if the run could take longer than nanoseconds can count.
  ActionTimes(const Program& program, const Costs& costs,
              const std::vector<Nanoseconds>& reduction = {});

  /// In place of the times per stage, from now on: of actions of `kind` (F, B, I or W) by placed
  /// stage and micro-batch mod m. Throws Error as the constructor does, and if it is not that many.
  void Replace(ActionKind kind, const std::vector<std::vector<Nanoseconds>>& times,
               const Program& program);

  /// Every compute time becomes so many times what it is, by the rank it is spent on. Throws Error
  /// as the constructor does.
  void Scale(const std::vector<double>& rank_factors, const Program& program);

  /// In place of one time for all, from now on: what messages take on each lane. Throws Error as
  /// the constructor does.
  void ReplaceLinks(std::vector<LinkTime> lanes, const Program& program);
  /// Likewise the time of an AR per group.
  void ReplaceReductions(std::vector<int64_t> groups, const Program& program);

  int64_t Of(const RunAction& action) const {
    return Of(action.kind, action.stage, action.microbatch);
  }
  int64_t Of(const Action& action) const {
    return Of(action.kind, action.stage, action.microbatch);
  }
  int64_t Of(ActionKind kind, int placed, int64_t microbatch) const {
    const std::vector<int64_t>& own = by_microbatch_[static_cast<size_t>(kind)];
    if (own.empty()) return Of(kind, placed);
    return own[static_cast<size_t>(placed * microbatches_ + FloorMod(microbatch, microbatches_))];
  }
  int64_t Of(ActionKind kind, int placed) const {
    return times_[static_cast<size_t>(kind)][static_cast<size_t>(placed)];
  }
  /// The time given for a pair of F and full B, by the stage of its F; else the sum of the two.
  template <class AnyAction>
  int64_t OfOverlap(const AnyAction& forward, const AnyAction& backward) const {
    if (backward.kind == ActionKind::kBackward && !overlap_.empty()) {
      return overlap_[static_cast<size_t>(forward.stage)];
    }
    return Of(forward) + Of(backward);
  }
  int64_t OfReduction(int group) const { return reduction_[static_cast<size_t>(group)]; }

  const LinkTime& OfMessage(int lane) const {
    return lanes_.empty() ? message_ : lanes_[static_cast<size_t>(lane)];
  }
  /// Whether a message keeps its lane from the next one at all.
  bool messages_occupy() const;
  PlayLinks Links(int receive_slots) const { return {message_, lanes_, receive_slots}; }
  Bytes message_bytes() const { return message_bytes_; }

  /// Compute time per step of the busiest rank.
  Nanoseconds BusyPerStep(const Program& program) const;

 private:
  void CheckSum(const Program& program) const;

  static constexpr size_t kKinds = static_cast<size_t>(ActionKind::kUpdate) + 1;
  std::array<std::vector<int64_t>, kKinds> times_;
  std::array<std::vector<int64_t>, kKinds> by_microbatch_;  ///< replaced times; most often none
  int64_t microbatches_ = 1;                                ///< m
  std::vector<int64_t> overlap_;                            ///< per placed stage
  std::vector<int64_t> reduction_;
  LinkTime message_;
  std::vector<LinkTime> lanes_;  ///< replaced; most often none
  Bytes message_bytes_ = 0;
  /// Per kind and placed stage: how often it stands in the body.
  std::array<std::vector<int64_t>, kKinds> counts_;
  bool any_overlap_ = false;
};

/// To the nearest nanosecond. Throws Error beyond what nanoseconds can count.
int64_t Multiplied(int64_t time, double factor);

/// What messages take on each lane where `behind[s]` bytes pass between stage s and the next one:
/// on a lane of several pairs of stages as long as the largest. Empty if all are alike.
std::vector<LinkTime> LinksOfMessages(const Program& program, const std::vector<Bytes>& behind,
                                      const Costs& costs);

}  // namespace pipelag
