// From flags to a simulated run: what `simulate` shows one of and `sweep` many. Must not know how a
// run is shown.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "models/schedule/warm_up.h"
#include "sim/estimated_run.h"
#include "sim/reduction_cost.h"
#include "sim/simulator.h"
#include "tools/conditions.h"
#include "tools/flags.h"
#include "tools/partition_flags.h"
#include "tools/result.h"

namespace pipelag {

/// All that a simulated run depends on.
std::vector<Flag> SimulationFlags();

struct Simulated {
  RunResult result;
  SteadyState steady;
  bool exact = true;  ///< the step time
  bool messages_take_time = false;
  std::vector<Lane> critical_links;
  Outlook outlook;
  Costs costs;
  std::optional<Stages> stages;  ///< where layers are shared out
  std::string optimizer;         ///< that gave the updates their times; empty: none did
  std::optional<ReductionCost> reductions;
  std::optional<WarmUpProposal> warm_up;
  std::vector<Finding> beyond_memory;
  std::optional<Throughput> throughput;  ///< of a modelled run
  int64_t gpus = 0;
  bool drawn = false;
};

/// What else is wanted than the figures.
struct Extras {
  bool spans = false;
  bool picture = false;
  /// What limits the step, why ranks idle, what reductions cost, a warm-up, memory over time. Of
  /// memory only the peaks are there without.
  bool reasons = true;
};

Simulated SimulateOne(const NamedSchedule& named, const Arguments& arguments, const Extras& extras);

}  // namespace pipelag
