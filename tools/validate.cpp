// `pipelag validate`: simulates jobs whose outcome was measured and says how far off it is.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "models/cost/fit.h"
#include "models/names.h"
#include "tools/case_file.h"
#include "tools/flags.h"
#include "tools/measured_case.h"
#include "tools/table.h"

namespace pipelag {
namespace {

constexpr double kBytesPerGib = 1 << 30;

struct Outcome {
  const MeasuredCase* of = nullptr;
  bool calibrated_on = false;
  PredictedRun predicted;
  RunErrors errors;
  std::optional<Bytes> beyond;  ///< what the rank that needs most lacks; nothing: it is not known
};

/// Indices of the rows to calibrate on: "first" of each group, or names and numbers of rows.
std::vector<bool> CalibrationOf(const Arguments& arguments, const CaseFile& cases) {
  std::vector<bool> chosen(cases.rows.size(), false);
  if (!arguments.Has("calibrate-on")) return chosen;
  std::vector<std::string_view> names;
  for (const CaseRow& row : cases.rows) names.push_back(row.name);
  for (const std::string& item : arguments.Texts("calibrate-on")) {
    if (item == "first") {
      std::vector<std::string> seen;
      for (size_t i = 0; i < cases.rows.size(); ++i) {
        const std::string& group = cases.rows[i].group;
        if (std::find(seen.begin(), seen.end(), group) != seen.end()) continue;
        seen.push_back(group);
        chosen[i] = true;
      }
      continue;
    }
    const auto named = std::find(names.begin(), names.end(), item);
    size_t index = static_cast<size_t>(named - names.begin());
    const bool number = !item.empty() && item.find_first_not_of("0123456789") == item.npos;
    if (named == names.end() && number) {
      index = item.size() < 9 ? static_cast<size_t>(ParseInteger(item)) : names.size();
    }
    if (index >= names.size()) {
      throw Error(fmt::format(
          "{}: there is no row '{}'; the nearest is '{}', the last is number {}",
          arguments.PlaceOf("calibrate-on"), item, Nearest(item, names), names.size() - 1));
    }
    chosen[index] = true;
  }
  return chosen;
}

/// Of each group: fitted to those of its rows that are chosen.
std::map<std::string, Efficiency> Fitted(const std::vector<MeasuredCase>& cases,
                                         const std::vector<bool>& chosen) {
  std::map<std::string, std::vector<const MeasuredCase*>> groups;
  for (size_t i = 0; i < cases.size(); ++i) {
    if (chosen[i]) groups[cases[i].row().group].push_back(&cases[i]);
  }
  std::map<std::string, Efficiency> fitted;
  for (const auto& [group, rows] : groups) {
    const auto errors = [&rows](const Efficiency& efficiency) {
      std::vector<double> logs;
      for (const MeasuredCase* row : rows) {
        const RunErrors of = ErrorsOf(row->row().measured, row->Predict(efficiency));
        for (const std::optional<double>& error : {of.time, of.forward, of.backward}) {
          if (error) logs.push_back(std::log1p(*error));
        }
      }
      return logs;
    };
    fitted[group] = FitEfficiency(rows[0]->start(), errors);
  }
  return fitted;
}

/// Rows of one group, schedule or machine.
struct Heading {
  std::string kind;
  std::string name;
  std::vector<double> time;
  std::vector<double> memory;
  std::vector<double> actions;  ///< F and B
};

/// Over the rows that were not calibrated on.
std::vector<Heading> Headings(const std::vector<Outcome>& outcomes) {
  std::vector<Heading> headings = {{"all", "unseen rows", {}, {}, {}}};
  const auto add = [&](const std::string& kind, const std::string& name, const RunErrors& errors) {
    auto found = std::find_if(headings.begin(), headings.end(), [&](const Heading& heading) {
      return heading.kind == kind && heading.name == name;
    });
    if (found == headings.end()) found = headings.insert(found, {kind, name, {}, {}, {}});
    if (errors.time) found->time.push_back(*errors.time);
    if (errors.memory) found->memory.push_back(*errors.memory);
    if (errors.forward) found->actions.push_back(*errors.forward);
    if (errors.backward) found->actions.push_back(*errors.backward);
  };
  for (const char* kind : {"all", "group", "schedule", "machine"}) {
    for (const Outcome& outcome : outcomes) {
      if (outcome.calibrated_on) continue;
      const MeasuredCase& of = *outcome.of;
      const std::string_view which = kind;
      if (which == "all") add(kind, "unseen rows", outcome.errors);
      if (which == "group" && !of.row().group.empty()) add(kind, of.row().group, outcome.errors);
      if (which == "schedule") add(kind, of.schedule(), outcome.errors);
      if (which == "machine") add(kind, of.machine(), outcome.errors);
    }
  }
  return headings;
}

nlohmann::ordered_json SummaryJson(const std::vector<double>& errors) {
  const ErrorSummary summary = Summarize(errors);
  return {{"rows", summary.runs},
          {"median", summary.median},
          {"p95", summary.p95},
          {"worst", summary.worst},
          {"bias", summary.bias}};
}

nlohmann::ordered_json JsonOf(const CaseFile& cases, const std::vector<Outcome>& outcomes,
                              const std::map<std::string, Efficiency>& fitted) {
  using Json = nlohmann::ordered_json;
  Json json = {{"source", cases.source}};
  Json rows = Json::array();
  for (const Outcome& outcome : outcomes) {
    const CaseRow& row = outcome.of->row();
    Json entry = {{"name", row.name},
                  {"group", row.group},
                  {"schedule", outcome.of->schedule()},
                  {"machine", outcome.of->machine()},
                  {"calibrated_on", outcome.calibrated_on},
                  {"step_time_s", outcome.predicted.step_time_s}};
    if (outcome.predicted.tokens_per_s_per_gpu > 0) {
      entry["tokens_per_s_per_gpu"] = outcome.predicted.tokens_per_s_per_gpu;
      entry["tflops_per_gpu"] = outcome.predicted.tflops_per_gpu;
    }
    if (outcome.predicted.peak_memory_gib > 0) {
      entry["peak_memory_gib"] = outcome.predicted.peak_memory_gib;
    }
    if (outcome.beyond) entry["fits"] = *outcome.beyond <= 0;
    if (outcome.errors.time) entry["time_error"] = *outcome.errors.time;
    if (outcome.errors.memory) entry["memory_error"] = *outcome.errors.memory;
    if (outcome.errors.forward) entry["forward_error"] = *outcome.errors.forward;
    if (outcome.errors.backward) entry["backward_error"] = *outcome.errors.backward;
    rows.push_back(std::move(entry));
  }
  json["rows"] = std::move(rows);
  Json summaries = Json::array();
  for (const Heading& heading : Headings(outcomes)) {
    Json summary = {{"by", heading.kind}, {"name", heading.name}};
    if (!heading.time.empty()) summary["time"] = SummaryJson(heading.time);
    if (!heading.memory.empty()) summary["memory"] = SummaryJson(heading.memory);
    if (!heading.actions.empty()) summary["actions"] = SummaryJson(heading.actions);
    summaries.push_back(std::move(summary));
  }
  json["unseen"] = std::move(summaries);
  for (const auto& [group, efficiency] : fitted) {
    Json& terms = json["calibration"][group.empty() ? "all rows" : group];
    for (const EfficiencyTerm& term : EfficiencyTerms()) {
      terms[std::string(term.name)] = efficiency.*term.value;
    }
  }
  return json;
}

std::string Percent(const std::optional<double>& error) {
  constexpr double kMost = 100;  // beyond it no digit behind the point says anything
  if (!error) return "-";
  return *error < kMost ? fmt::format("{:+.1f} %", 100 * *error)
                        : fmt::format("{:+.3g} %", 100 * *error);
}

/// What fits a column of it.
std::string Shortened(const std::string& name) {
  constexpr size_t kMost = 40;
  size_t columns = 0;
  for (size_t at = 0; at < name.size(); ++at) {
    if ((static_cast<unsigned char>(name[at]) & 0xc0) == 0x80) continue;
    if (++columns > kMost) return name.substr(0, at) + "…";
  }
  return name;
}

std::string Remarks(const Outcome& outcome) {
  std::string text = outcome.calibrated_on ? "calibrated on" : "";
  if (!outcome.beyond || *outcome.beyond <= 0) return text;
  return text + fmt::format("{}does not fit: {} too much", text.empty() ? "" : ", ",
                            FormatBytes(*outcome.beyond));
}

std::string RowsText(const std::vector<Outcome>& outcomes) {
  std::vector<std::vector<std::string>> rows = {
      {"row", "group", "schedule", "simulated step", "error", "of memory", "of F", "of B", ""}};
  for (const Outcome& outcome : outcomes) {
    const auto step = Nanoseconds{std::llround(outcome.predicted.step_time_s * 1e9)};
    rows.push_back({Shortened(outcome.of->row().name), Shortened(outcome.of->row().group),
                    outcome.of->schedule(), FormatDuration(step), Percent(outcome.errors.time),
                    Percent(outcome.errors.memory), Percent(outcome.errors.forward),
                    Percent(outcome.errors.backward), Remarks(outcome)});
  }
  return FormatTable(rows);
}

std::string SummariesText(const std::vector<Outcome>& outcomes) {
  std::vector<std::vector<std::string>> rows = {
      {"by", "", "of", "rows", "median", "95th percentile", "worst", "bias"}};
  const auto add = [&](const Heading& heading, const char* of, const std::vector<double>& errors) {
    if (errors.empty()) return;
    const ErrorSummary summary = Summarize(errors);
    rows.push_back({heading.kind, Shortened(heading.name), of, fmt::format("{}", summary.runs),
                    fmt::format("{:.1f} %", 100 * summary.median),
                    fmt::format("{:.1f} %", 100 * summary.p95),
                    fmt::format("{:.1f} %", 100 * summary.worst),
                    fmt::format("{:+.1f} %", 100 * summary.bias)});
  };
  for (const Heading& heading : Headings(outcomes)) {
    add(heading, "time", heading.time);
    add(heading, "memory", heading.memory);
    add(heading, "F and B", heading.actions);
  }
  if (rows.size() == 1) return "no row is left that was not calibrated on\n";
  return FormatTable(rows);
}

std::string FactorsText(const std::map<std::string, Efficiency>& fitted) {
  std::string text;
  for (const auto& [group, efficiency] : fitted) {
    text +=
        fmt::format("calibrated {}: compute × {:.3f}, communication × {:.3f}, launch {:.1f} us\n",
                    group.empty() ? "all rows" : group, efficiency.compute_factor,
                    efficiency.communication_factor, efficiency.launch * 1e6);
  }
  return text;
}

std::vector<std::string> JobKeys() {
  std::vector<std::string> keys;
  for (const Flag& flag : SimulateCommand().flags) keys.push_back(flag.name);
  return keys;
}

/// A share.
std::optional<double> ToleranceOf(const Arguments& arguments) {
  if (!arguments.Has("tolerance")) return std::nullopt;
  const double percent = arguments.Decimal("tolerance");
  if (percent >= 0) return percent / 100;
  throw Error(
      fmt::format("{}: {} % is less than nothing", arguments.PlaceOf("tolerance"), percent));
}

int Run(const Arguments& arguments) {
  const bool json = WantsJson(arguments);
  const std::string output = arguments.Output("output");
  const std::optional<double> tolerance = ToleranceOf(arguments);
  const std::vector<std::string> keys = JobKeys();
  const CaseFile file = ReadCases(arguments.operands()[0], keys);
  const std::vector<bool> chosen = CalibrationOf(arguments, file);
  std::vector<MeasuredCase> cases;
  for (const CaseRow& row : file.rows) cases.emplace_back(row);
  const std::map<std::string, Efficiency> fitted = Fitted(cases, chosen);
  std::vector<Outcome> outcomes;
  for (size_t i = 0; i < cases.size(); ++i) {
    const auto own = fitted.find(file.rows[i].group);
    const Efficiency efficiency = own == fitted.end() ? cases[i].start() : own->second;
    Outcome outcome{&cases[i], chosen[i], cases[i].Predict(efficiency), {}, {}};
    const auto [peak, device] = cases[i].MemoryBy(efficiency);
    outcome.predicted.peak_memory_gib = static_cast<double>(peak) / kBytesPerGib;
    if (device > 0) outcome.beyond = peak - device;
    outcome.errors = ErrorsOf(file.rows[i].measured, outcome.predicted);
    outcomes.push_back(std::move(outcome));
  }
  const std::vector<double> unseen = Headings(outcomes)[0].time;
  if (tolerance && unseen.empty()) {
    throw Error(fmt::format("{}: of no row that was not calibrated on is a time known",
                            arguments.PlaceOf("tolerance")));
  }
  if (!output.empty()) {
    if (fitted.size() != 1) {
      throw Error(fmt::format("{}: {} groups were calibrated, but a file holds one",
                              arguments.PlaceOf("output"), fitted.size()));
    }
    WriteEfficiency(fitted.begin()->second, output);
  }
  if (json) {
    fmt::print("{}\n", JsonOf(file, outcomes, fitted).dump(2));
  } else {
    fmt::print("{}\n{}{}", RowsText(outcomes), FactorsText(fitted), SummariesText(outcomes));
    if (!file.source.empty()) fmt::print("source: {}\n", file.source);
  }
  return !tolerance || Summarize(unseen).median <= *tolerance ? 0 : 1;
}

}  // namespace

Subcommand ValidateCommand() {
  return {
      .name = "validate",
      .operands = "CASES",
      .summary = "simulates jobs with measured outcomes: signed errors, calibrated if asked",
      .details =
          "CASES is a JSON file:\n"
          "  {\"source\": TEXT, \"rows\": [{\"job\": {FLAG: VALUE, ...}, \"measured\": {...},\n"
          "   \"group\": TEXT, \"name\": TEXT}, ...]}\n"
          "A job has the flags of 'simulate'; of a run one or more of step_time_s,\n"
          "tokens_per_s_per_gpu, tflops_per_gpu (nothing recomputed counts), peak_memory_gib,\n"
          "forward_s and backward_s (of the stage that takes longest) were measured. Rows of one "
          "group share what is calibrated: a machine and a framework.\n"
          "Errors are of the step time, simulated over measured less 1, also where a rate was\n"
          "measured; medians and percentiles are over rows that were not calibrated on.\n\n"
          "Example: pipelag validate tests/validation/sc21.json --calibrate-on first",
      .fewest_operands = 1,
      .most_operands = 1,
      .flags = {{"calibrate-on", "first|ROW[,ROW...]",
                 "fit each group's efficiency to the first of its rows, or to those named (or "
                 "numbered from 0)"},
                {"output", "FILE", "write the fitted efficiency, for --efficiency",
                 FlagValue::kRequired, 'o'},
                {"tolerance", "PERCENT", "exit code 1 if the median error is above it"},
                FormatFlag()},
      .run = Run,
  };
}

}  // namespace pipelag
