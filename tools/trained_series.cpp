// What training under one schedule came to, and how that is shown and written.
#include "tools/trained_series.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "models/file.h"
#include "models/update_time.h"
#include "tools/result.h"
#include "tools/table.h"
#include "traces/chrome.h"
#include "traces/versions.h"

namespace pipelag {
namespace {

/// Empty: not known.
std::vector<RankMemory> MemoryOf(const Series& series) {
  if (!series.memory) return {};
  return MemoryOverTime(series.typical().trace, series.memory->sizes, series.memory->standing);
}

RunResult ResultOf(const Series& series) {
  const TrainingResult& run = series.typical();
  RunResult result;
  result.trace = run.trace;
  result.stages = series.program ? series.program->schedule().stages : run.trace.stages;
  result.replicas = series.replicas;
  // The serial reference is one rank for all of them.
  result.ranks = std::max(1, run.trace.ranks / series.replicas);
  result.microbatches = run.trace.microbatches / series.replicas;
  result.metrics = series.summary.metrics;
  result.versions = MeasuredVersions(run.trace);
  result.memory = MemoryOf(series);
  Explain(result);
  return result;
}

std::string DelaysText(const Series& series) {
  std::vector<int64_t> delays;
  for (const int64_t delay : MeasuredDelay(series.typical().trace)) {
    if (delay < 0) return "-";  // no update was done
    delays.push_back(delay);
  }
  return FormatFew(delays);
}

std::string Table(const std::vector<Series>& all) {
  const bool predicted = all.front().simulated.has_value();
  std::vector<std::vector<std::string>> rows = {{"schedule", "step measured", "spread"}};
  std::vector<std::string>& head = rows.front();
  if (predicted) head.insert(head.end(), {"predicted", "error"});
  head.emplace_back("bubble");
  if (predicted) head.emplace_back("predicted");
  head.insert(head.end(), {"delay", "tokens/s", "loss", "validation"});
  for (const Series& series : all) {
    const SeriesSummary& summary = series.summary;
    const Metrics& metrics = summary.metrics;
    std::vector<std::string> row = {
        series.name, FormatDuration(metrics.step_time.RoundedUp()),
        fmt::format("{} .. {}", FormatDuration(summary.least.RoundedUp()),
                    FormatDuration(summary.greatest.RoundedUp()))};
    if (predicted) {
      row.push_back(FormatDuration(series.simulated->metrics.step_time.RoundedUp()));
      row.push_back(
          fmt::format("{:+.1f} %", 100 * summary.ErrorOf(series.simulated->metrics.step_time)));
    }
    row.push_back(FormatShare(metrics.bubble.steady_state));
    if (predicted) row.push_back(FormatShare(series.simulated->metrics.bubble.steady_state));
    const TrainingResult& run = series.typical();
    row.push_back(DelaysText(series));
    row.push_back(fmt::format("{:.0f}", TokensPerSecond(run.trace, metrics.step_time)));
    row.push_back(run.diverged ? "diverged" : fmt::format("{:.4f}", run.final_loss()));
    row.push_back(run.diverged ? fmt::format("at step {}", *run.diverged)
                               : fmt::format("{:.4f}", run.validation_loss));
    rows.push_back(std::move(row));
  }
  return FormatTable(rows);
}

}  // namespace

std::string MeasuredTrace(const Series& series) {
  const std::vector<RankMemory> memory = MemoryOf(series);
  return ToChrome(series.typical().trace, {.memory = memory.empty() ? nullptr : &memory});
}

void WriteFolder(const std::filesystem::path& folder, const std::vector<Series>& all,
                 const Costs* costs) {
  std::vector<std::pair<std::string, const Trace*>> labelled;
  for (const Series& series : all) {
    labelled.emplace_back(series.name + " measured", &series.typical().trace);
    WriteFile(folder / (series.name + ".measured.json"), MeasuredTrace(series));
    if (!series.simulated) continue;
    labelled.emplace_back(series.name + " simulated", &series.simulated->trace);
    WriteFile(folder / (series.name + ".simulated.json"), ToChrome(series.simulated->trace));
  }
  WriteFile(folder / "side-by-side.json", ToChrome(labelled));
  if (costs != nullptr) WriteCosts(*costs, folder / "costs.json");
}

void WriteLosses(const std::string& file, const std::vector<Series>& all) {
  std::string csv = "schedule,step,tokens,loss\n";
  for (const Series& series : all) {
    const TrainingResult& run = series.typical();
    for (size_t step = 0; step < run.step_losses.size(); ++step) {
      const int64_t number = run.first_step + static_cast<int64_t>(step) + 1;
      csv += fmt::format("{},{},{},", series.name, number, number * run.trace.tokens_per_step);
      csv += std::isfinite(run.step_losses[step]) ? fmt::format("{:.6f}\n", run.step_losses[step])
                                                  : std::string("diverged\n");
    }
  }
  WriteFile(file, csv);
}

nlohmann::ordered_json SeriesJson(const Series& series, const Corpus& corpus) {
  nlohmann::ordered_json json = ResultJson(ResultOf(series));
  const TrainingResult& run = series.typical();
  if (run.diverged) {
    json["diverged"] = *run.diverged;
    json["diverged_where"] = run.diverged_where;
  } else {
    json["final_loss"] = run.final_loss();
    json["validation_loss"] = run.validation_loss;
    json["weights_sha256"] = run.weights_sha256;
  }
  if (run.first_step > 0) json["first_step"] = run.first_step;
  json["trained_steps"] = run.step_losses.size();
  json["validation_tokens"] = run.validation_tokens;
  if (corpus.entropy_rate) json["entropy_per_byte"] = *corpus.entropy_rate;
  for (size_t rank = 0; rank < series.clocks.size(); ++rank) {
    json["clocks"].push_back({{"rank", rank},
                              {"ahead_ns", series.clocks[rank].ahead.count()},
                              {"uncertainty_ns", series.clocks[rank].uncertainty.count()}});
  }
  json["repetitions"] = series.runs.size();
  json["step_time_min_ns"] = series.summary.least.RoundedUp().count();
  json["step_time_max_ns"] = series.summary.greatest.RoundedUp().count();
  if (series.simulated) {
    json["predicted"] = {{"step_time_ns", series.simulated->metrics.step_time.RoundedUp().count()},
                         {"error", series.summary.ErrorOf(series.simulated->metrics.step_time)},
                         {"bubble_steady_state", series.simulated->metrics.bubble.steady_state}};
  }
  return json;
}

std::string SeriesText(const std::vector<Series>& all, const TrainingOptions& options,
                       const Corpus& corpus) {
  const TrainingResult& first = all.front().typical();
  const std::string from =
      first.first_step > 0 ? fmt::format(" after step {}", first.first_step) : "";
  std::string kind;
  if (options.shape.tied) {
    kind += fmt::format(", tied head ({} parameters)", NetworkParameters(options.shape));
  }
  if (options.precision == ProductPrecision::kBf16) kind += ", products in bf16";
  const int replicas = all.front().replicas;
  const std::string shared = replicas > 1 ? fmt::format(" on {} replicas", replicas) : "";
  std::string text = fmt::format(
      "trained on {}: {} layers of {} channels{}, {} tokens a step{}, {} steps{}, {}\n\n",
      corpus.source, options.shape.layers, options.shape.hidden, kind, first.trace.tokens_per_step,
      shared, first.step_losses.size(), from, options.optimizer.name);
  text += Table(all);
  text += fmt::format("\nlosses in nats per {}; validation over {} tokens",
                      corpus.bytes ? "byte" : "token", first.validation_tokens);
  if (corpus.entropy_rate) {
    text += fmt::format("; the text's own entropy is {:.4f}", *corpus.entropy_rate);
  }
  text += '\n';
  for (const Series& series : all) {
    if (series.typical().diverged) continue;
    text += fmt::format("weights after {}: {}\n", series.name, series.typical().weights_sha256);
  }
  return text;
}

}  // namespace pipelag
