// The lowered, checked form of a schedule: the only thing an executor accepts. Stores the body and
// small tables; everything else about an action is computed when asked. Knows no hardware, no
// seconds.
//
// The law of execution, which simulator, runtime, validator and memory accounting all obey:
//  1. Lanes of a rank: compute; one per (sender, receiver, payload), in the producer's compute
//  order
//     on both halves; reduce. A lane runs one action at a time in its order. Stages on one rank
//     exchange by pointer. Nothing else orders anything, except:
//  2. An action starts when its lane is free and its data prerequisites have ended: F(s,k) ←
//     F(s−1,k); B or I(s,k) ← own F and the B or I of (s+1,k); W ← own I; OVERLAP(F, B) is one
//     action; U(t) ← its stage's last B/W of batch t and every AR(t) that names the stage.
//  3. A transfer starts when its data is ready, both lane halves are free and a receive slot is
//     free. Bytes ÷ bandwidth occupy both halves; the message is delivered `latency` later, which
//     occupies no lane. A receive never waits for the compute lane. A slot is released at the end
//     of the action that consumes the message.
//  4. AR(t) waits for the last B/W of batch t of every stage of its group, starts when every member
//     is ready and occupies every member's reduce lane.
//  5. Lane order plus prerequisites form the dependency graph; a cycle is a deadlock, found here.
//  6. One order over all lanes of a rank, for executors that have but one: issue_order.h. Its
//     consecutive entries are not dependencies.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "models/schedule/plain_order.h"
#include "models/schedule/schedule.h"

namespace pipelag {

/// A one-way channel between two ranks for one payload.
struct Lane {
  int sender = 0;
  int receiver = 0;
  ActionKind payload = ActionKind::kSendForward;  ///< kSendForward or kSendBackward
};

/// How weights age on one placed stage, in steady state. All are derived from the order alone.
struct StageVersions {
  int gradient_delay = 0;      ///< max over a batch's F of t − version read
  int gradient_delay_min = 0;  ///< the minimum
  int backward_delay = 0;      ///< max over its B/I; differs under `Latest` only
  int weight_versions = 1;     ///< most versions live at once: the buffers needed
  int gradient_buffers = 1;    ///< batches whose gradients are being summed at once
};

/// An action of a run: an entry of the body in one of its repetitions.
struct RunAction {
  ActionKind kind = ActionKind::kForward;
  int stage = 0;           ///< placed stage; for AR the group
  int64_t microbatch = 0;  ///< numbered over the run; for U and AR the step
  int64_t step = 0;        ///< the batch it belongs to
  bool overlaps_next = false;
  int position = 0;  ///< index in the rank's body
};

class Program {
 public:
  /// Checks `schedule` (Validate, then deadlocks and the order given) and lowers it for a run of
  /// `steps` ≥ 1. Throws ScheduleError with all findings.
  Program(Schedule schedule, int64_t steps);

  const Schedule& schedule() const { return *schedule_; }
  int64_t steps() const { return steps_; }
  int64_t total_microbatches() const { return steps_ * schedule_->microbatches; }
  /// Compute-lane actions of the run, over all ranks.
  int64_t actions() const;
  /// The same body for another number of steps; shares the body, checks nothing again.
  Program WithSteps(int64_t steps) const;

  /// As many steps as the body's actions reach across, and some: whatever the endless order has to
  /// show, a cycle say, it shows there.
  int64_t StepsThatShowAll() const;

  const std::vector<Lane>& lanes() const { return lanes_; }
  /// Lane that carries the result of an F (to the next stage) or of a B/I (to the stage before); -1
  /// if there is no such stage or it stands on the same rank.
  int ForwardLane(int placed) const { return forward_lane_[static_cast<size_t>(placed)]; }
  int BackwardLane(int placed) const { return backward_lane_[static_cast<size_t>(placed)]; }

  /// Lane over which the message that an action of this kind and stage consumes arrives, or that
  /// its result leaves by; -1 where there is none.
  int ConsumedLane(ActionKind kind, int placed) const;
  int ProducedLane(ActionKind kind, int placed) const;

  const StageVersions& versions(int placed) const { return versions_[static_cast<size_t>(placed)]; }
  /// Version that an F, B or I reads; for U the version it makes (step + 1).
  int64_t WeightVersion(const RunAction& action) const;
  /// The d of that version max(0, t − d), for the F, B or I at `position` of its rank's body.
  int ReadDelay(int placed, int position) const;

  /// Stage activations held at once, from F's start to B's or W's end: most over the run.
  int PeakInFlight(int placed) const { return peak_stage_[static_cast<size_t>(placed)]; }
  int PeakInFlightOfRank(int rank) const { return peak_rank_[static_cast<size_t>(rank)]; }

  /// Micro-batch numbers about which messages between one stage and the next may be under way at
  /// once fit into this many consecutive ones (a power of two): a ring of this size, indexed by
  /// micro-batch, never collides.
  int64_t window() const { return window_; }
  /// The same for steps: U and AR.
  int64_t step_window() const { return step_window_; }

  /// First and one-past-last repetition of the body in which `rank` has anything to do.
  int64_t first_block(int rank) const { return -max_shift_[static_cast<size_t>(rank)]; }
  int64_t last_block(int rank) const { return steps_ - min_shift_[static_cast<size_t>(rank)]; }
  /// First and one-past-last repetition of the body that no rank's clipping has taken anything
  /// from; none if the first is not less.
  int64_t first_whole_block() const { return -least_shift_; }
  int64_t last_whole_block() const { return steps_ - greatest_shift_; }

 private:
  void BuildLanes();
  void BuildShifts();
  void BuildPeaks();
  void TakePlain(PlainOrder order);
  void FindDeadlock() const;

  std::shared_ptr<const Schedule> schedule_;
  int64_t steps_ = 0;
  std::vector<Lane> lanes_;
  std::vector<int> forward_lane_;
  std::vector<int> backward_lane_;
  std::vector<StageVersions> versions_;
  std::vector<UpdatePlace> updates_;  ///< per placed stage
  std::vector<int> batch_delays_;     ///< per placed stage, where the whole batch shares one
  std::vector<int> min_shift_;        ///< per rank: least and greatest step number in its body
  std::vector<int> max_shift_;
  int64_t least_shift_ = 0;  ///< of all ranks, at most 0
  int64_t greatest_shift_ = 0;
  std::vector<int> peak_stage_;
  std::vector<int> peak_rank_;
  int64_t window_ = 0;
  int64_t step_window_ = 0;
};

/// Walks the actions of one rank of a run in lane order: the endless body, clipped to what exists.
class LaneWalk {
 public:
  LaneWalk(const Program& program, int rank) : LaneWalk(program, rank, program.steps()) {}
  /// Of a run of `steps` instead.
  LaneWalk(const Program& program, int rank, int64_t steps)
      : body_(&program.schedule().body[static_cast<size_t>(rank)]),
        m_(program.schedule().microbatches),
        total_(steps * program.schedule().microbatches),
        steps_(steps),
        block_(program.first_block(rank)),
        end_block_(program.last_block(rank) - program.steps() + steps),
        stop_block_(end_block_) {
    Settle();
  }
  /// Of another order than the rank's body, periodic like it.
  LaneWalk(const Schedule& schedule, const std::vector<Action>& order, int64_t steps)
      : body_(&order),
        m_(schedule.microbatches),
        total_(steps * schedule.microbatches),
        steps_(steps),
        end_block_(steps) {
    for (const Action& action : order) {
      block_ = std::min(block_, -schedule.ShiftOf(action));
      end_block_ = std::max(end_block_, steps - schedule.ShiftOf(action));
    }
    stop_block_ = end_block_;
    Settle();
  }

  bool done() const { return block_ >= stop_block_; }
  /// Undefined once done().
  const RunAction& action() const { return action_; }
  void Advance() {
    ++position_;
    Settle();
  }

  /// Is done before repetition `block` of the body already, until a later call says otherwise.
  void StopBefore(int64_t block) {
    stop_block_ = std::min(block, end_block_);
    Settle();
  }
  /// Where it is done: the repetition that would come next.
  int64_t block() const { return block_; }
  /// Goes on `blocks` repetitions later. Only where it is done.
  void Skip(int64_t blocks) {
    block_ += blocks;
    stop_block_ = block_;
  }

 private:
  void Settle() {
    const size_t size = body_->size();
    for (; block_ < stop_block_; ++block_, position_ = 0) {
      for (; position_ < size; ++position_) {
        if (Load()) return;
      }
    }
  }

  bool Exists(const Action& a) const {
    if (!HasMicrobatch(a.kind)) {
      const int64_t step = block_ + a.microbatch;
      return step >= 0 && step < steps_;
    }
    const int64_t i = block_ * m_ + a.microbatch;
    return i >= 0 && i < total_;
  }

  bool Load() {
    const Action& a = (*body_)[position_];
    if (!Exists(a)) return false;
    action_.kind = a.kind;
    action_.stage = a.stage;
    action_.position = static_cast<int>(position_);
    if (HasMicrobatch(a.kind)) {
      action_.microbatch = block_ * m_ + a.microbatch;
      action_.step = static_cast<uint64_t>(a.microbatch) < static_cast<uint64_t>(m_)
                         ? block_
                         : action_.microbatch / m_;
    } else {
      action_.microbatch = action_.step = block_ + a.microbatch;
    }
    // An OVERLAP that loses one half to the clipping is the other half alone.
    action_.overlaps_next = a.overlaps_next && Exists((*body_)[position_ + 1]);
    return true;
  }

  const std::vector<Action>* body_;
  int64_t m_;
  int64_t total_;
  int64_t steps_;
  int64_t block_ = 0;
  int64_t end_block_;
  int64_t stop_block_ = 0;
  size_t position_ = 0;
  RunAction action_;
};

}  // namespace pipelag
