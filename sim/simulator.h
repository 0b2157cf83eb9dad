// Virtual execution of a program: exact integer nanoseconds, no noise. Knows no JSON and no
// schedule names; writes spans only if asked.
#pragma once

#include "models/schedule/program.h"
#include "sim/steady_state.h"
#include "sim/times.h"
#include "traces/metrics.h"
#include "traces/trace.h"

namespace pipelag {

struct SimulationOptions {
  int receive_slots = 0;  ///< per lane; 0: as many as can never delay
  bool spans = false;     ///< fill `trace.spans`
  /// Bodies of more actions than this do not get what limits their steady state named, only its
  /// exact step time: that needs no graph where there is a flush.
  int64_t most_actions_for_critical_cycle = 1 << 20;
};

struct Simulation {
  Metrics metrics;     ///< of this run; `step_time` is the exact steady one
  SteadyState steady;  ///< what limits it
  Trace trace;         ///< header always, spans if asked
};

/// Throws Error naming the blocked ranks if bounded receive slots deadlock.
Simulation Simulate(const Program& program, const ActionTimes& times,
                    const SimulationOptions& options = {});

}  // namespace pipelag
