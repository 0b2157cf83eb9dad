// Virtual execution of a program in exact integer nanoseconds. Knows no JSON and no schedule names;
// writes spans only if asked.
#pragma once

#include <optional>

#include "models/schedule/program.h"
#include "sim/contended_layout.h"
#include "sim/noise.h"
#include "sim/steady_state.h"
#include "sim/times.h"
#include "traces/metrics.h"
#include "traces/trace.h"

namespace pipelag {

struct SimulationOptions {
  int receive_slots = 0;  ///< per lane; 0: as many as can never delay
  bool spans = false;     ///< fill `trace.spans`
  /// With a cluster, messages and reductions are flows over it, and the times' bandwidth and
  /// latency do not count; a SEND span is as long as the message was on the wire.
  NetworkOptions network{};
  /// That the ranks of all replicas share: of n ranks that compute on c cores each goes on at the
  /// rate min(1, c/n). An action then lasts longer than its time, and all that is told of it (span,
  /// busy time, bubbles) is as long as it lasts. 0: each rank has a core of its own, as on a
  /// cluster, where it must be 0.
  int64_t cores = 0;
  NoiseOptions noise{};
  /// Bodies of more actions than this do not get what limits their steady state named, only its
  /// exact step time: that needs no graph where there is a flush.
  int64_t most_actions_for_critical_cycle = 1 << 20;
};

struct Simulation {
  /// Of this run; `step_time` is the exact steady one. With noise that varies, with factors that
  /// differ between replicas, with fewer cores than ranks, and on a cluster where messages or
  /// reductions ever slow each other, it is the mean over the middle half of the run's steps, or
  /// the makespan of a single one.
  Metrics metrics;
  SteadyState steady;  ///< what limits it; of a mean the step time only
  /// Whether the step time is exact.
  bool exact = true;
  /// Where it is, and the times are not those given: on a cluster those that messages and
  /// reductions take on their ways, with factors of ranks the scaled ones.
  std::optional<ActionTimes> met;
  Trace trace;  ///< header always, spans if asked
};

/// Throws Error naming the blocked ranks if bounded receive slots deadlock, and for options that do
/// not fit the program.
Simulation Simulate(const Program& program, const ActionTimes& times,
                    const SimulationOptions& options = {});

}  // namespace pipelag
