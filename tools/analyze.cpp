// `pipelag analyze`: figures of recorded runs.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "tools/flags.h"
#include "tools/result.h"
#include "tools/timeline.h"
#include "traces/chrome.h"
#include "traces/in_flight.h"
#include "traces/primus.h"
#include "traces/versions.h"

namespace pipelag {
namespace {

constexpr size_t kMostDrawn = 1'000'000;

RunResult ResultOf(const std::string& file, int64_t warm_up) {
  RunResult result;
  result.trace = IsPrimus(file) ? ReadPrimus(file) : ReadRun(file);
  if (warm_up > 1 && warm_up >= result.trace.steps) {
    throw Error(fmt::format("{}: a warm-up of {} leaves nothing of its {} steps", file, warm_up,
                            result.trace.steps));
  }
  result.stages = StagesOfNetwork(result.trace);
  result.replicas = result.trace.replicas;
  result.ranks = result.trace.ranks / result.replicas;
  result.microbatches = result.trace.microbatches / result.replicas;
  result.metrics = ComputeMetrics(result.trace, warm_up);
  result.versions = MeasuredVersions(result.trace);
  Explain(result);
  return result;
}

int Run(const Arguments& arguments) {
  const bool json = WantsJson(arguments);
  const int64_t warm_up = WarmUpOf(arguments);
  std::vector<RunResult> results;
  for (const std::string& file : arguments.operands()) {
    results.push_back(ResultOf(file, warm_up));
  }
  if (json) {
    std::vector<nlohmann::ordered_json> objects;
    for (size_t i = 0; i < results.size(); ++i) {
      objects.push_back(ResultJson(results[i]));
      objects.back()["file"] = arguments.operands()[i];
    }
    fmt::print("{}", JsonText(std::move(objects)));
  } else if (results.size() == 1) {
    const bool drawable = results[0].trace.spans.size() <= kMostDrawn;
    fmt::print("{}\n{}",
               drawable ? FormatTimeline(results[0].trace, TerminalColumns())
                        : "(too many actions to be drawn)\n",
               ResultText(results[0]));
  } else {
    std::vector<const RunResult*> side_by_side;
    for (const RunResult& result : results) side_by_side.push_back(&result);
    fmt::print("{}", SideBySide(side_by_side));
  }
  return 0;
}

}  // namespace

Subcommand AnalyzeCommand() {
  return {
      .name = "analyze",
      .operands = "TRACE...",
      .summary = "metrics and idle time of recorded runs, simulated or measured",
      .details =
          "A TRACE is a Chrome trace written by pipelag, or a folder of AMD Primus (config.json "
          "and\n"
          "pp_rank_N.json). The step time is the median over the steps after the warm-up. Several "
          "traces stand "
          "side\n"
          "by side.\n\nExample: pipelag analyze trace.json --format json",
      .fewest_operands = 1,
      .most_operands = kAnyNumber,
      .flags = {WarmUpFlag(), FormatFlag()},
      .run = Run,
  };
}

}  // namespace pipelag
