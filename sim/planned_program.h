// What planning keeps of a lowered schedule, to hold many costs against it: what it holds, how old
// its gradients are, and a step time that no costs can undercut. Knows no layouts.
#pragma once

#include "models/costs.h"
#include "models/held_memory.h"
#include "models/schedule/program.h"

namespace pipelag {

class PlannedProgram {
 public:
  explicit PlannedProgram(const Schedule& schedule);

  const Program& program() const { return program_; }
  const HeldMemory& held() const { return held_; }
  int gradient_delay() const { return gradient_delay_; }

  /// No step of the endless run is shorter: neither than the work of the busiest rank, nor, with a
  /// flush, than the way of a micro-batch to a rank, all its forwards and backwards there, the
  /// gradient's way back, and the update of the first stage, behind which that rank begins anew.
  /// `reductions`: per group, as ActionTimes takes them.
  Nanoseconds LeastStepTime(const Costs& costs, const std::vector<Nanoseconds>& reductions) const;

 private:
  struct StageWork {
    int64_t forwards = 0;  ///< in the body
    int64_t backwards = 0;
    int64_t inputs = 0;
    int64_t weights = 0;
  };

  int64_t LongestRound(const Costs& costs, const std::vector<Nanoseconds>& reductions) const;

  Program program_;
  HeldMemory held_;
  int gradient_delay_ = 0;
  std::vector<StageWork> work_;  ///< per placed stage
  bool overlaps_ = false;
};

}  // namespace pipelag
