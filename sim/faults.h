// What failing ranks leave of a long run: goodput, and how often to write a checkpoint. Knows
// nothing of schedules.
#pragma once

#include <cstdint>

#include "models/units.h"

namespace pipelag {

/// A run works for an interval, then writes a checkpoint while nothing else goes on. Every rank
/// fails after a time that is exponentially distributed; the failure of any one throws the run back
/// to its last checkpoint and costs a restart, which a failure during it begins anew.
struct FaultModel {
  int ranks = 1;
  Nanoseconds rank_mtbf{0};  ///< mean time between failures of one rank
  Nanoseconds checkpoint_interval{0};
  Nanoseconds checkpoint_cost{0};
  Nanoseconds restart{0};
};

/// Throws Error naming the flag for what cannot be, and if a run would hardly ever get from one
/// checkpoint to the next.
void CheckFaults(const FaultModel& model);

/// Useful time over all time: τ / (M·e^(R/M)·(e^((τ + C)/M) − 1)), M = mtbf / ranks (renewal at
/// each checkpoint; Daly, "A higher order estimate of the optimum checkpoint interval for restart
/// dumps", FGCS 2006, eq. 13).
double ExpectedGoodput(const FaultModel& model);

/// The interval of the greatest expected goodput: τ = M·x with 1 − x = e^(−x − C/M). It does not
/// depend on the restart. 0 if a checkpoint costs nothing.
Nanoseconds BestCheckpointInterval(const FaultModel& model);

/// Young's estimate of it, √(2·C·M) ("A first order approximation to the optimum checkpoint
/// interval", CACM 1974).
Nanoseconds YoungCheckpointInterval(const FaultModel& model);

struct FaultRun {
  double goodput = 0;
  double standard_error = 0;  ///< of `goodput`, from the spread between intervals
  int64_t failures = 0;
};

/// Plays `intervals` ≥ 2 checkpoint intervals event by event.
FaultRun SimulateFaults(const FaultModel& model, int intervals, uint64_t seed);

}  // namespace pipelag
