// How far a noisy run's figures spread over seeds. Knows nothing of what the noise is.
#pragma once

#include "sim/simulator.h"

namespace pipelag {

/// The smallest value that at least that share of all values do not exceed.
struct Quantiles {
  Nanoseconds p5{0};
  Nanoseconds p50{0};
  Nanoseconds p95{0};
};

struct RunSpread {
  Quantiles makespan;
  Quantiles step_time;
};

/// There must be at least one value.
Quantiles QuantilesOf(std::vector<Nanoseconds> values);

/// Runs with the seeds noise.seed, noise.seed + 1, …; `seeds` ≥ 1 of them, else Error.
RunSpread SpreadOverSeeds(const Program& program, const ActionTimes& times,
                          SimulationOptions options, int seeds);

}  // namespace pipelag
