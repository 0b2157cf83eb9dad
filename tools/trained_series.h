// What training under one schedule came to, all its repetitions, and how that is shown and written.
// Must not know how it was run.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "models/costs.h"
#include "models/schedule/program.h"
#include "runtime/data/corpus.h"
#include "runtime/planned_memory.h"
#include "runtime/processes/train.h"
#include "runtime/training.h"
#include "sim/simulator.h"
#include "traces/series.h"

namespace pipelag {

/// One schedule of the series and what its repetitions came to.
struct Series {
  std::string name;
  std::optional<Program> program;  ///< none for delays by hand
  int replicas = 1;
  std::vector<TrainingResult> runs{};
  SeriesSummary summary{};
  std::optional<Simulation> simulated{};
  std::vector<ClockOffset> clocks{};      ///< of processes, in the last run
  std::optional<PlannedMemory> memory{};  ///< of ranks on the processor

  const TrainingResult& typical() const { return runs[summary.typical]; }
};

/// Of the typical run, with its memory where that is known.
std::string MeasuredTrace(const Series& series);

/// Chrome traces, each by itself and all side by side; `costs`: null if nothing was predicted.
void WriteFolder(const std::filesystem::path& folder, const std::vector<Series>& all,
                 const Costs* costs);

/// The loss of every step as CSV.
void WriteLosses(const std::string& file, const std::vector<Series>& all);

nlohmann::ordered_json SeriesJson(const Series& series, const Corpus& corpus);
std::string SeriesText(const std::vector<Series>& all, const TrainingOptions& options,
                       const Corpus& corpus);

}  // namespace pipelag
