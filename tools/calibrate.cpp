// `pipelag calibrate`: traces in, cost file out.
#include "traces/calibrate.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "models/file.h"
#include "tools/flags.h"
#include "tools/table.h"
#include "traces/chrome.h"

namespace pipelag {
namespace {

std::string TextOf(const Costs& costs, const std::string& target) {
  std::vector<std::vector<std::string>> rows = {
      {"stage", "forward", "backward", "for input", "for weights", "update"}};
  const auto cell = [](const std::vector<Nanoseconds>& times, size_t stage) {
    return times.empty() ? std::string("-") : FormatDuration(times[stage]);
  };
  for (size_t s = 0; s < costs.forward.size(); ++s) {
    rows.push_back({fmt::format("{}", s), cell(costs.forward, s), cell(costs.backward, s),
                    cell(costs.backward_input, s), cell(costs.backward_weight, s),
                    cell(costs.update, s)});
  }
  return fmt::format("{}\nlatency {}, {} a message\nsource: {}\nwritten to {}\n", FormatTable(rows),
                     FormatDuration(costs.p2p_latency), FormatBytes(costs.activation_bytes),
                     costs.source, target);
}

int Run(const Arguments& arguments) {
  const bool json = WantsJson(arguments);
  if (!arguments.Has("output")) throw Error("--output is missing");
  const std::string target = arguments.Output("output");
  const int64_t warm_up = WarmUpOf(arguments);
  std::vector<Trace> traces;
  for (const std::string& file : arguments.operands()) {
    Trace trace = ReadRun(file);
    // Every replica has the stages of the others, which are told once.
    const int stages = trace.stages / trace.replicas;
    traces.push_back(OfSlices(std::move(trace), stages));
  }
  Costs costs;
  try {
    costs = Calibrate(traces, {.warm_up = warm_up});
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", fmt::join(arguments.operands(), ", "), error.what()));
  }
  WriteCosts(costs, target);
  fmt::print("{}", json ? ReadFile(target) : TextOf(costs, target));
  return 0;
}

}  // namespace

Subcommand CalibrateCommand() {
  return {
      .name = "calibrate",
      .operands = "TRACE...",
      .summary = "turns measured traces into a cost file for --costs",
      .details = "Example: pipelag calibrate measured.json -o costs.json",
      .fewest_operands = 1,
      .most_operands = kAnyNumber,
      .flags = {{"output", "FILE", "cost file to write", FlagValue::kRequired, 'o'},
                WarmUpFlag(),
                FormatFlag()},
      .run = Run,
  };
}

}  // namespace pipelag
