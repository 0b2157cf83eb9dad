// `pipelag schedule`: prints, checks, exports and reads schedules.
#include "models/schedule/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "models/file.h"
#include "models/schedule/issue_order.h"
#include "models/schedule/text.h"
#include "sim/derived.h"
#include "tools/flags.h"
#include "tools/network_flags.h"
#include "tools/result.h"
#include "tools/table.h"
#include "traces/in_flight.h"

namespace pipelag {
namespace {

using Json = nlohmann::ordered_json;

Json PerStage(const Program& program) {
  const Schedule& schedule = program.schedule();
  Json rows = Json::array();
  for (int s = 0; s < schedule.placed_stages(); ++s) {
    const StageVersions& versions = program.versions(s);
    rows.push_back({{"stage", schedule.SliceOf(s)},
                    {"stream", schedule.StreamOf(s)},
                    {"rank", schedule.placement[static_cast<size_t>(s)]},
                    {"gradient_delay", versions.gradient_delay},
                    {"gradient_delay_min", versions.gradient_delay_min},
                    {"backward_delay", versions.backward_delay},
                    {"weight_versions", versions.weight_versions},
                    {"gradient_buffers", versions.gradient_buffers},
                    {"peak_in_flight", program.PeakInFlight(s)}});
  }
  return rows;
}

Json ValuesJson(const std::vector<Ratio>& values) {
  Json list = Json::array();
  for (const Ratio& value : values) {
    list.push_back(value.denominator == 1 ? Json(value.numerator)
                                          : Json({value.numerator, value.denominator}));
  }
  return values.size() == 1 ? list[0] : list;
}

Json FactsJson(const std::vector<DerivedFact>& facts) {
  Json rows = Json::array();
  for (const DerivedFact& fact : facts) {
    rows.push_back({{"quantity", QuantityName(fact.fact.quantity)},
                    {"formula", fact.fact.formula},
                    {"value", ValuesJson(fact.fact.values)},
                    {"derived", ValuesJson(fact.derived)},
                    {"agrees", fact.agrees}});
  }
  return rows;
}

std::string ValuesText(Quantity quantity, const std::vector<Ratio>& values) {
  const bool share = quantity == Quantity::kIdleOfMakespan || quantity == Quantity::kIdleOfSpan ||
                     quantity == Quantity::kSteadyIdle;
  if (share) {
    return FormatShare(static_cast<double>(values[0].numerator) /
                       static_cast<double>(values[0].denominator));
  }
  std::vector<int64_t> counts;
  for (const Ratio& value : values) counts.push_back(value.numerator);
  return FormatFew(counts);
}

std::string FactsText(const NamedSchedule& named, const std::vector<DerivedFact>& facts) {
  if (!named.file.empty()) return "closed form: none is known of an order that is a file's own\n";
  std::vector<std::vector<std::string>> rows = {{"closed form", "formula", "value", "derived"}};
  for (const DerivedFact& fact : facts) {
    const Quantity quantity = fact.fact.quantity;
    rows.push_back({std::string(QuantityName(quantity)), fact.fact.formula,
                    ValuesText(quantity, fact.fact.values), ValuesText(quantity, fact.derived)});
    if (!fact.agrees) rows.back().emplace_back("differs");
  }
  std::string text = FormatTable(rows) + "(F, I and W take one unit each, messages none)\n";
  std::string missing;
  for (const Quantity quantity : WithoutFact(named.facts, named.schedule.flushes())) {
    missing += fmt::format("{}{}", missing.empty() ? "" : ", ", QuantityName(quantity));
  }
  if (!missing.empty())
    text += fmt::format("no closed form is known for these sizes: {}\n", missing);
  return text;
}

Json JsonOf(const NamedSchedule& named, const Program& program) {
  const Schedule& schedule = program.schedule();
  Json per_rank = Json::array();
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    Json actions = Json::array();
    for (const Action& action : schedule.body[static_cast<size_t>(rank)]) {
      actions.push_back(ActionText(schedule, action));
    }
    per_rank.push_back({{"rank", rank},
                        {"peak_in_flight", program.PeakInFlightOfRank(rank)},
                        {"peak_in_flight_shares", InShares(program.PeakInFlightOfRank(rank),
                                                           schedule.ranks, schedule.stages)},
                        {"actions", std::move(actions)}});
  }
  return {{"schedule", schedule.name},
          {"policy", PolicyName(schedule.policy)},
          {"ranks", schedule.ranks},
          {"stages", schedule.stages},
          {"streams", schedule.streams},
          {"microbatches", schedule.microbatches},
          {"facts", FactsJson(DeriveFacts(named.facts, program))},
          {"per_stage", PerStage(program)},
          {"per_rank", std::move(per_rank)}};
}

/// Where a stage is not a rank's whole part of the network, both units.
std::string InFlightText(const Program& program) {
  const Schedule& schedule = program.schedule();
  if (schedule.stages == schedule.ranks) return "";
  std::vector<int64_t> held;
  std::vector<double> shares;
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    held.push_back(program.PeakInFlightOfRank(rank));
    shares.push_back(InShares(held.back(), schedule.ranks, schedule.stages));
  }
  return fmt::format("in flight per rank: {}, in shares of 1/{} of the network {}\n",
                     FormatFew(held), schedule.ranks, FormatFewShares(shares));
}

std::string TextOf(const NamedSchedule& named, const Program& program) {
  const Schedule& schedule = program.schedule();
  std::vector<std::vector<std::string>> rows = {{"stage", "rank", "gradient delay", "least",
                                                 "of backward", "weight versions",
                                                 "gradient buffers", "in flight"}};
  for (int s = 0; s < schedule.placed_stages(); ++s) {
    const StageVersions& versions = program.versions(s);
    const int cells[] = {schedule.placement[static_cast<size_t>(s)],
                         versions.gradient_delay,
                         versions.gradient_delay_min,
                         versions.backward_delay,
                         versions.weight_versions,
                         versions.gradient_buffers,
                         program.PeakInFlight(s)};
    std::vector<std::string>& row = rows.emplace_back();
    row.push_back(fmt::format("{}", schedule.SliceOf(s)));
    for (const int cell : cells) row.push_back(fmt::format("{}", cell));
  }
  return fmt::format(
      "{}: {}, {}, {} per step, weights {}\n\n{}\n\n{}{}\n{}\nchecked: every "
      "action is there once, in an order that ends, and reads weights that exist\n",
      schedule.name, Counted(schedule.ranks, "rank"), Counted(schedule.stages, "stage"),
      Counted(schedule.microbatches, "micro-batch"), PolicyName(schedule.policy),
      FormatGrid(schedule, {}, std::numeric_limits<int>::max()), FormatTable(rows),
      InFlightText(program), FactsText(named, DeriveFacts(named.facts, program)));
}

void PrintFindings(const ScheduleError& error, bool json) {
  Json findings = Json::array();
  for (const Finding& finding : error.findings()) {
    if (json) {
      findings.push_back(
          {{"message", finding.message}, {"rank", finding.rank}, {"position", finding.position}});
    } else {
      fmt::print("{}\n", finding.message);
    }
  }
  if (json) fmt::print("{}\n", Json{{"findings", std::move(findings)}}.dump(2));
}

/// All findings are this subcommand's result; main tells of the first and shows the grid.
std::vector<Program> Check(const std::vector<NamedSchedule>& schedules, const Arguments& arguments,
                           bool json) {
  std::vector<Program> programs;
  for (const NamedSchedule& named : schedules) {
    try {
      programs.push_back(Lower(named, arguments));
    } catch (const ScheduleError& error) {
      PrintFindings(error, json);
      throw;
    }
  }
  return programs;
}

std::vector<std::vector<Action>> RowsToExport(const Program& program, const Arguments& arguments) {
  constexpr std::string_view kForms[] = {"compute", "communication"};
  const bool transfers =
      arguments.Has("export-form") && arguments.Choice("export-form", kForms) == "communication";
  return transfers ? BodyWithTransfers(program) : program.schedule().body;
}

int Run(const Arguments& arguments) {
  const bool json = WantsJson(arguments);
  const std::string target = arguments.TextOr("export", "");
  if (!target.empty()) CheckWritable(target);
  if (!target.empty() && std::filesystem::path(target).extension() != ".csv") {
    throw Error(fmt::format("{}: '{}' does not end in .csv, by which schedules are known",
                            arguments.PlaceOf("export"), target));
  }
  if (target.empty() && arguments.Has("export-form")) {
    throw Error(fmt::format("{}: is the form of a file, but no --export is asked for",
                            arguments.PlaceOf("export-form")));
  }
  RefuseUselessTimes(arguments, "only zb-auto is made for times");
  const std::vector<NamedSchedule> schedules = SchedulesOf(arguments);
  const std::vector<Program> programs = Check(schedules, arguments, json);
  if (!target.empty()) {
    if (programs.size() != 1) {
      throw Error(fmt::format("--export: one file holds one schedule, not {}", programs.size()));
    }
    WriteCsv(programs[0].schedule(), RowsToExport(programs[0], arguments), target);
  }
  std::vector<Json> results;
  for (size_t i = 0; i < programs.size(); ++i) {
    if (json) {
      results.push_back(JsonOf(schedules[i], programs[i]));
    } else {
      fmt::print("{}{}", i == 0 ? "" : "\n", TextOf(schedules[i], programs[i]));
    }
  }
  if (json) fmt::print("{}", JsonText(std::move(results)));
  return 0;
}

}  // namespace

Subcommand ScheduleCommand() {
  return {
      .name = "schedule",
      .operands = "",
      .summary = "prints, checks, exports and imports schedules; delays, versions, in flight",
      .details =
          "A cell reads <stage><kind><micro-batch>: F forward, B backward, I and W its parts for\n"
          "the input and the weights, U update, AR all-reduce, SEND_F RECV_F SEND_B RECV_B the\n"
          "halves of a message. A CSV is in either form of PyTorch's pipelining schedules; what "
          "it\n"
          "cannot say stands in a .json file of the same name. One with sends and receives must\n"
          "have all of them, in an order in which ranks that block do not deadlock.\n"
          "An ill-formed schedule ends with exit code 2 and its grid with the bad cells marked.\n"
          "zb-auto is made for the times that are given.\n\n"
          "Example: pipelag schedule --schedule 1f1b --ranks 4 --microbatches 8 --export 1f1b.csv",
      .flags = Concatenate({ScheduleFlags(),
                            {TiedFlag(),
                             {"export", "FILE", "write the schedule as CSV"},
                             {"export-form", "compute|communication",
                              "whether its CSV has the sends and receives too (default: compute)"},
                             FormatFlag()},
                            CostFlags()}),
      .run = Run,
  };
}

}  // namespace pipelag
