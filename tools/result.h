// The result of a run, simulated or measured, as JSON and as text: one form for every subcommand
// that has one. Must not know where the figures come from.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "models/schedule/program.h"
#include "traces/critical_path.h"
#include "traces/idle.h"
#include "traces/memory.h"
#include "traces/metrics.h"
#include "traces/trace.h"

namespace pipelag {

struct RunResult {
  Trace trace;  ///< header and, where it is to be drawn, spans
  Metrics metrics;
  std::vector<StageVersions> versions;  ///< per placed stage; −1: not known
  int stages = 0;                       ///< slices of the network
  int replicas = 1;                     ///< of the pipeline
  int ranks = 0;                        ///< of one replica
  int64_t microbatches = 0;             ///< of one replica, per step
  std::vector<IdleShares> idle{};       ///< per rank; empty: not known
  CriticalPath path{};                  ///< without pieces: not known
  std::vector<RankMemory> memory{};     ///< per rank; empty: not known
  bool mean = false;                    ///< the step time is the run's mean, not an exact one
};

/// Fills in idle times and path from the spans of `result.trace`.
void Explain(RunResult& result);

/// The object that `simulate`, `analyze` and `run` print.
nlohmann::ordered_json ResultJson(const RunResult& result);

/// Makespan, step time, bubbles, and a row per rank and stage.
std::string ResultText(const RunResult& result);

/// Several runs side by side, a row each; then their idle time by its causes, where it is known.
std::string SideBySide(const std::vector<const RunResult*>& results);

/// One object, or {"results": […]} of several, as text.
std::string JsonText(std::vector<nlohmann::ordered_json> results);

}  // namespace pipelag
