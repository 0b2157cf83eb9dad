// A device that takes the times it is given and computes nothing. Either it sleeps, so that many
// more ranks than cores run side by side as if each had a device of its own, or it keeps a core
// busy, so that ranks slow each other as those that compute do. Knows no network.
#pragma once

#include <memory>
#include <vector>

#include "models/costs.h"
#include "runtime/compute.h"
#include "runtime/cpu/arena.h"
#include "runtime/rank_plan.h"
#include "runtime/run_control.h"

namespace pipelag {

/// Stages of one rank, used by one thread. An action starts when the lane is free and its messages
/// have arrived. Collectives take no time of the compute lane.
///
/// Asleep, an action ends when its time is over, as on a device that has its work queued: that the
/// thread is late delays nobody but those who wait for its messages. Its events happen when the
/// clock says so. Busy, it ends when the thread has had a core for that time since it was called,
/// and has happened by then; while the thread waits for messages it leaves the core to others.
class EmulatedCompute : public Compute {
 public:
  enum class Way { kAsleep, kBusy };

  /// `costs` by slice; throws Error if they lack a kind that is then asked for. `control` is
  /// borrowed, as its events borrow from it.
  EmulatedCompute(const RankPlan& plan, const Costs& costs, Way way, const RunControl& control);
  ~EmulatedCompute() override;

  std::byte* MessageBuffer(int lane, int index) override;
  /// Empty: there are no gradients.
  std::span<float> GradientBuffer(int stage, int index) override;
  std::span<float> SharedGradient(int stage, int index) override;
  EventPtr Start(const ComputeTask& task, std::span<const EventPtr> after) override;

 private:
  class Alarm;
  class TimedEvent;

  Nanoseconds DurationOf(const RunAction& action) const;

  RankPlan plan_;
  Costs costs_;
  Way way_;
  const RunControl& control_;
  std::unique_ptr<Alarm> alarm_;
  size_t message_bytes_;
  std::unique_ptr<Arena> arena_;
  std::vector<std::pair<int, std::vector<std::byte*>>> messages_;  // by lane
  bool started_ = false;
  Nanoseconds lane_free_{0};
};

}  // namespace pipelag
