// The conditions that a simulated run meets beyond fixed times: a cluster whose links are shared,
// cores that are, noise, failing ranks; and what they do to it. Must not know how a run is shown.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "sim/faults.h"
#include "sim/simulator.h"
#include "sim/spread.h"
#include "tools/arguments.h"
#include "tools/subcommand.h"

namespace pipelag {

/// --cluster … --restart.
std::vector<Flag> ConditionFlags();

struct Conditions {
  std::shared_ptr<const Cluster> cluster;  ///< what `network` points to
  NetworkOptions network;
  int64_t cores = 0;  ///< 0: each rank has one of its own
  NoiseOptions noise;
  int seeds = 0;                     ///< 0: no spread is wanted
  std::optional<FaultModel> faults;  ///< interval 0: the best one
};

/// Throws Error naming the flag for what does not go together.
Conditions ConditionsOf(const Arguments& arguments, const Schedule& schedule);

/// Makes micro-batches as unequal as --microbatch-spread says.
void ApplySpread(const Arguments& arguments, const Program& program, ActionTimes& times);

/// What the conditions leave of a run.
struct Outlook {
  std::optional<RunSpread> spread;
  int seeds = 0;
  std::optional<FaultModel> faults;  ///< with the interval that is used
  double goodput = 1;
};
Outlook OutlookOf(const Program& program, const ActionTimes& times,
                  const SimulationOptions& options, const Conditions& conditions);

/// Adds "spread" and "goodput", where wanted.
void AddOutlook(const Outlook& outlook, nlohmann::ordered_json& json);
/// Lines for people; empty where nothing is wanted.
std::string OutlookText(const Outlook& outlook);

}  // namespace pipelag
