// `pipelag compare`: a simulated trace against a measured one, action by action.
#include "traces/compare.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tools/flags.h"
#include "tools/table.h"
#include "traces/chrome.h"

namespace pipelag {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kOutside = 1;

std::string FormatError(double error) { return fmt::format("{:+.2f} %", 100 * error); }

/// JSON has no infinity.
Json Finite(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json BubbleJson(const Bubble& bubble) {
  return {{"idle_of_makespan", bubble.idle_of_makespan},
          {"idle_over_ideal", bubble.idle_over_ideal},
          {"of_span", bubble.of_span},
          {"steady_state", bubble.steady_state}};
}

Json JsonOf(const Comparison& comparison) {
  Json rows = Json::array();
  for (const ComparisonRow& row : comparison.rows) {
    rows.push_back({{"rank", row.rank},
                    {"kind", KindName(row.kind)},
                    {"actions", row.actions},
                    {"measured_ns", row.measured.count()},
                    {"simulated_ns", row.simulated.count()},
                    {"error", Finite(row.error)}});
  }
  return {{"step_time",
           {{"measured_ns", comparison.measured_step.RoundedUp().count()},
            {"simulated_ns", comparison.simulated_step.RoundedUp().count()},
            {"error", Finite(comparison.step_error)}}},
          {"bubble",
           {{"measured", BubbleJson(comparison.measured_bubble)},
            {"simulated", BubbleJson(comparison.simulated_bubble)}}},
          {"actions",
           {{"joined", comparison.joined},
            {"only_measured", comparison.only_measured},
            {"only_simulated", comparison.only_simulated}}},
          {"rows", std::move(rows)}};
}

std::string TextOf(const Comparison& comparison) {
  std::vector<std::vector<std::string>> rows = {
      {"rank", "kind", "actions", "measured", "simulated", "error"}};
  for (const ComparisonRow& row : comparison.rows) {
    rows.push_back({fmt::format("{}", row.rank), std::string(KindName(row.kind)),
                    fmt::format("{}", row.actions), FormatDuration(row.measured),
                    FormatDuration(row.simulated), FormatError(row.error)});
  }
  const std::vector<std::vector<std::string>> run = {
      {"", "measured", "simulated", "error"},
      {"step time", FormatDuration(comparison.measured_step.RoundedUp()),
       FormatDuration(comparison.simulated_step.RoundedUp()), FormatError(comparison.step_error)},
      {"bubble of the makespan", FormatShare(comparison.measured_bubble.idle_of_makespan),
       FormatShare(comparison.simulated_bubble.idle_of_makespan)},
      {"bubble in steady state", FormatShare(comparison.measured_bubble.steady_state),
       FormatShare(comparison.simulated_bubble.steady_state)}};
  return fmt::format("{}\n{}\n{} actions joined, {} only measured, {} only simulated\n",
                     FormatTable(run), FormatTable(rows), comparison.joined,
                     comparison.only_measured, comparison.only_simulated);
}

double Tolerance(const Arguments& arguments) {
  const double percent = arguments.Decimal("tolerance");
  if (percent < 0) {
    throw Error(fmt::format("{}: '{}' is negative", arguments.PlaceOf("tolerance"),
                            arguments.Text("tolerance")));
  }
  return percent;
}

int Run(const Arguments& arguments) {
  const bool json = WantsJson(arguments);
  const bool judged = arguments.Has("tolerance");
  const double tolerance = judged ? Tolerance(arguments) : 0;
  const std::string& measured = arguments.operands()[0];
  const std::string& simulated = arguments.operands()[1];
  const Trace traces[] = {ReadRun(measured), ReadRun(simulated)};
  Comparison comparison;
  try {
    comparison = Compare(traces[0], traces[1], WarmUpOf(arguments));
  } catch (const Error& error) {
    throw Error(fmt::format("{}, {}: {}", measured, simulated, error.what()));
  }
  const bool within = !judged || WithinTolerance(comparison, tolerance);
  if (json) {
    Json result = JsonOf(comparison);
    if (judged) {
      result["tolerance_percent"] = tolerance;
      result["within_tolerance"] = within;
    }
    fmt::print("{}\n", result.dump(2));
  } else {
    fmt::print("{}", TextOf(comparison));
    if (judged) {
      fmt::print("the step time is {} the tolerance of {} %\n", within ? "within" : "outside",
                 tolerance);
    }
  }
  return within ? 0 : kOutside;
}

}  // namespace

Subcommand CompareCommand() {
  return {
      .name = "compare",
      .operands = "MEASURED SIMULATED",
      .summary = "holds a simulated trace against a measured one: errors of times and bubbles",
      .details = "Example: pipelag compare measured.json simulated.json --tolerance 5",
      .fewest_operands = 2,
      .most_operands = 2,
      .flags = {{"tolerance", "PERCENT",
                 "exit with 1 if the step time's error is larger than this"},
                WarmUpFlag(),
                FormatFlag()},
      .run = Run,
  };
}

}  // namespace pipelag
