// The result of a run, simulated or measured, as JSON and as text: one form for every subcommand
// that has one. Must not know where the figures come from.
#include "tools/result.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tools/explain.h"
#include "tools/table.h"
#include "traces/in_flight.h"

namespace pipelag {
namespace {

using Json = nlohmann::ordered_json;

Json Known(int value) { return value < 0 ? Json(nullptr) : Json(value); }
std::string KnownText(int value) { return value < 0 ? "-" : fmt::format("{}", value); }

Json PerStage(const RunResult& result) {
  Json rows = Json::array();
  for (size_t s = 0; s < result.versions.size(); ++s) {
    const StageVersions& versions = result.versions[s];
    rows.push_back({{"stage", s},
                    {"rank", result.trace.stage_rank.at(s)},
                    {"gradient_delay", Known(versions.gradient_delay)},
                    {"gradient_delay_min", Known(versions.gradient_delay_min)},
                    {"backward_delay", Known(versions.backward_delay)},
                    {"weight_versions", Known(versions.weight_versions)}});
  }
  return rows;
}

Json PerRank(const RunResult& result) {
  const Metrics& metrics = result.metrics;
  Json rows = Json::array();
  for (size_t r = 0; r < metrics.ranks.size(); ++r) {
    const RankMetrics& rank = metrics.ranks[r];
    rows.push_back({{"rank", r},
                    {"busy_ns", rank.totals.busy.count()},
                    {"idle_ns", rank.idle.count()},
                    {"wait_ns", rank.totals.wait.count()},
                    {"transfer_ns", rank.totals.transfer.count()},
                    {"peak_in_flight", rank.totals.peak_in_flight},
                    {"peak_in_flight_shares",
                     InShares(rank.totals.peak_in_flight, result.ranks, result.stages)}});
    if (!result.memory.empty()) rows.back()["peak_memory_bytes"] = result.memory.at(r).peak;
  }
  return rows;
}

std::vector<int64_t> DelaysOf(const RunResult& result) {
  std::vector<int64_t> delays;
  for (const StageVersions& versions : result.versions) {
    delays.push_back(versions.gradient_delay);
  }
  return delays;
}

std::vector<int64_t> VersionsOf(const RunResult& result) {
  std::vector<int64_t> counts;
  for (const StageVersions& versions : result.versions) {
    counts.push_back(versions.weight_versions);
  }
  return counts;
}

std::vector<int64_t> InFlightOf(const RunResult& result) {
  std::vector<int64_t> peaks;
  for (const RankMetrics& rank : result.metrics.ranks) peaks.push_back(rank.totals.peak_in_flight);
  return peaks;
}

std::vector<double> SharesInFlightOf(const RunResult& result) {
  std::vector<double> shares;
  for (const int64_t held : InFlightOf(result)) {
    shares.push_back(InShares(held, result.ranks, result.stages));
  }
  return shares;
}

bool HasChunks(const RunResult& result) { return result.stages != result.ranks; }

std::string RankTable(const RunResult& result) {
  const Metrics& metrics = result.metrics;
  std::vector<std::vector<std::string>> rows = {
      {"rank", "busy", "idle", "before", "between", "after", "waiting", "transfer", "in flight"}};
  const std::vector<double> shares = SharesInFlightOf(result);
  if (HasChunks(result)) rows[0].emplace_back("shares");
  for (size_t r = 0; r < metrics.ranks.size(); ++r) {
    const RankMetrics& rank = metrics.ranks[r];
    const IdleParts parts = PartsOfIdle(metrics, r);
    rows.push_back({fmt::format("{}", r), FormatDuration(rank.totals.busy),
                    FormatDuration(rank.idle), FormatDuration(parts.before),
                    FormatDuration(parts.between), FormatDuration(parts.after),
                    FormatDuration(rank.totals.wait), FormatDuration(rank.totals.transfer),
                    fmt::format("{}", rank.totals.peak_in_flight)});
    if (HasChunks(result)) rows.back().push_back(fmt::format("{:.4g}", shares[r]));
  }
  return FormatTable(rows);
}

std::string StageTable(const RunResult& result) {
  std::vector<std::vector<std::string>> rows = {
      {"stage", "rank", "gradient delay", "least", "of backward", "weight versions"}};
  for (size_t s = 0; s < result.versions.size(); ++s) {
    const StageVersions& v = result.versions[s];
    rows.push_back({fmt::format("{}", s), fmt::format("{}", result.trace.stage_rank.at(s)),
                    KnownText(v.gradient_delay), KnownText(v.gradient_delay_min),
                    KnownText(v.backward_delay), KnownText(v.weight_versions)});
  }
  return FormatTable(rows);
}

}  // namespace

void Explain(RunResult& result) {
  result.idle = ExplainIdle(result.trace);
  result.path = FindCriticalPath(result.trace);
}

Json ResultJson(const RunResult& result) {
  const Metrics& metrics = result.metrics;
  Json json = {{"schedule", result.trace.schedule},
               {"ranks", result.ranks},
               {"stages", result.stages},
               {"replicas", result.replicas},
               {"microbatches", result.microbatches},
               {"steps", result.trace.steps},
               {"makespan_ns", metrics.makespan.count()},
               {"step_time_ns", metrics.step_time.RoundedUp().count()},
               {"step_time_exact", {metrics.step_time.numerator, metrics.step_time.denominator}},
               {"bubble",
                {{"idle_of_makespan", metrics.bubble.idle_of_makespan},
                 {"idle_over_ideal", metrics.bubble.idle_over_ideal},
                 {"of_span", metrics.bubble.of_span},
                 {"steady_state", metrics.bubble.steady_state}}}};
  if (result.trace.tokens_per_step > 0) {
    json["tokens_per_s"] = TokensPerSecond(result.trace, metrics.step_time);
  }
  json["per_stage"] = PerStage(result);
  json["per_rank"] = PerRank(result);
  if (!result.idle.empty()) json["idle"] = IdleJson(result.idle);
  if (!result.path.pieces.empty()) json["critical_path"] = PathJson(result.path);
  if (!result.memory.empty()) json["memory"] = MemoryJson(result.memory);
  return json;
}

std::string ResultText(const RunResult& result) {
  const Trace& trace = result.trace;
  const Metrics& metrics = result.metrics;
  const std::string copies =
      result.replicas > 1 ? fmt::format(" in each of {} replicas", result.replicas) : "";
  std::string text = fmt::format(
      "{}: {}, {}, {} per step{}, {}\n\n"
      "makespan   {}\nstep time  {}\n",
      trace.schedule, Counted(result.ranks, "rank"), Counted(result.stages, "stage"),
      Counted(result.microbatches, "micro-batch"), copies, Counted(trace.steps, "step"),
      FormatDuration(metrics.makespan),
      result.mean ? FormatDuration(metrics.step_time.RoundedUp()) + ", the mean of this run"
                  : FormatStepTime(metrics.step_time) + " in steady state");
  if (trace.tokens_per_step > 0) {
    text += fmt::format("tokens/s   {:.1f}\n", TokensPerSecond(trace, metrics.step_time));
  }
  text += fmt::format(
      "bubble     {} of the makespan, {} over the ideal, {} of the worst rank's span, {} in steady "
      "state\n\n",
      FormatShare(metrics.bubble.idle_of_makespan), FormatShare(metrics.bubble.idle_over_ideal),
      FormatShare(metrics.bubble.of_span), FormatShare(metrics.bubble.steady_state));
  text += RankTable(result) +
          "(idle: before the first, between, after the last action; waiting: for data)\n";
  if (HasChunks(result)) {
    text +=
        fmt::format("(in flight: activations of stages; a share is those of 1/{} of the network)\n",
                    result.ranks);
  }
  text += '\n';
  if (!result.idle.empty()) text += IdleText(result.idle) + '\n';
  if (!result.path.pieces.empty()) text += PathText(result.path) + '\n';
  if (!result.memory.empty()) text += MemoryText(result.memory) + '\n';
  return text + StageTable(result);
}

std::string SideBySide(const std::vector<const RunResult*>& results) {
  std::vector<std::vector<std::string>> rows = {{"schedule", "steps", "makespan", "step time",
                                                 "idle/makespan", "idle/ideal", "of span", "steady",
                                                 "in flight", "delay", "versions"}};
  const bool chunks = std::any_of(results.begin(), results.end(),
                                  [](const RunResult* result) { return HasChunks(*result); });
  if (chunks) rows[0].emplace_back("shares");
  for (const RunResult* result : results) {
    const Metrics& metrics = result->metrics;
    rows.push_back({result->trace.schedule, fmt::format("{}", result->trace.steps),
                    FormatDuration(metrics.makespan), FormatDuration(metrics.step_time.RoundedUp()),
                    FormatShare(metrics.bubble.idle_of_makespan),
                    FormatShare(metrics.bubble.idle_over_ideal),
                    FormatShare(metrics.bubble.of_span), FormatShare(metrics.bubble.steady_state),
                    FormatFew(InFlightOf(*result)), FormatFew(DelaysOf(*result)),
                    FormatFew(VersionsOf(*result))});
    if (chunks) rows.back().push_back(FormatFewShares(SharesInFlightOf(*result)));
  }
  std::string text = FormatTable(rows);
  if (chunks) {
    text +=
        "(in flight: activations of stages; shares: the same, where 1 is those of one rank's part "
        "of the network)\n";
  }
  std::vector<std::pair<std::string, const std::vector<IdleShares>*>> idle;
  for (const RunResult* result : results) {
    if (!result->idle.empty()) idle.emplace_back(result->trace.schedule, &result->idle);
  }
  if (!idle.empty()) text += '\n' + IdleSideBySide(idle);
  return text;
}

std::string JsonText(std::vector<Json> results) {
  if (results.size() == 1) return results[0].dump(2) + '\n';
  return Json{{"results", std::move(results)}}.dump(2) + '\n';
}

}  // namespace pipelag
