// What one rank needs of every kind of buffer, read off the program before anything runs. Knows no
// backend.
#pragma once

#include <vector>

#include "models/schedule/program.h"

namespace pipelag {

struct StagePlan {
  int stage = 0;  ///< placed stage
  int slice = 0;  ///< the part of the network it holds
  /// Of the copies of a slice one speaks for all: the first stream's.
  bool speaks = true;
  int activation_slots = 0;
  int kept_slots = 0;  ///< for what I leaves to W
  int weight_buffers = 0;
  int gradient_buffers = 0;
  int gradient_delay = 0;  ///< in steady state, for corrections: the greatest of all copies
  /// Versions older than the run's first that it begins with: none unless it goes on from another.
  int history = 0;
  bool same_delay = true;  ///< whether all copies have it
};
/// In place of a lane: what stages of one rank hand each other, by pointer.
constexpr int kHandover = -1;
struct MessagePlan {
  int lane = 0;  ///< or kHandover
  int buffers = 0;
};
/// Of a sum of gradients over ranks without a memory in common, where every member rank adds up a
/// part: room for what the others add to this one's.
struct ReductionPlan {
  int group = 0;
  int stage = 0;     ///< a member on this rank: its gradients are as long as all members'
  int summands = 0;  ///< of other ranks
  int member = 0;    ///< this rank's place among the member ranks
  int members = 1;

  /// Of summands of `length` elements.
  size_t ReceivedElements(size_t length) const;
};
struct RankPlan {
  int rank = 0;
  std::vector<StagePlan> stages;
  std::vector<MessagePlan> messages;      ///< of lanes that begin or end here, and of handovers
  std::vector<ReductionPlan> reductions;  ///< with members elsewhere
};

/// Buffers that the program says the rank needs, with `slots` receive slots per lane
/// (NeverDelayingSlots), in a run that begins with `first_step` updates done. Throws Error for a
/// schedule that the runtime cannot run, saying why.
RankPlan PlanRank(const Program& program, int rank, const std::vector<int>& slots,
                  int64_t first_step = 0);

/// Whether an action of this kind takes anything from another stage, or leaves it anything.
bool HasInput(const Schedule& schedule, ActionKind kind, int placed);
bool HasOutput(const Schedule& schedule, ActionKind kind, int placed);

}  // namespace pipelag
