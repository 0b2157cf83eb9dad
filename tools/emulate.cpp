#include "tools/emulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "models/file.h"
#include "runtime/emulated/cores.h"
#include "runtime/emulated/emulate.h"
#include "runtime/runnable.h"
#include "sim/simulator.h"
#include "tools/checkpoint_flags.h"
#include "tools/flags.h"
#include "tools/replica_flags.h"
#include "tools/result.h"
#include "tools/table.h"
#include "tools/training_flags.h"
#include "traces/chrome.h"
#include "traces/series.h"
#include "traces/versions.h"

namespace pipelag {
namespace {

struct Emulated {
  Program program;
  Costs costs;
  std::vector<Trace> runs;
  SeriesSummary summary;
  Simulation simulated;

  const Trace& typical() const { return runs[summary.typical]; }
  double MakespanError() const {
    return static_cast<double>(simulated.metrics.makespan.count()) /
               static_cast<double>(summary.metrics.makespan.count()) -
           1;
  }
};

void RefuseTraining(const Arguments& arguments, std::string_view compute) {
  std::vector<Flag> flags = Concatenate({TrainingFlags(), CheckpointFlags()});
  std::erase_if(flags, [](const Flag& flag) {
    return flag.name == "deadline" || flag.name == "tied";  // an exchange of messages as well
  });
  for (const char* name : {"backend", "transport", "delay", "loss", "log", "predict-from"}) {
    flags.push_back({name, "", ""});
  }
  RefuseGiven(arguments, flags, fmt::format("--compute {} trains nothing", compute));
}

/// That busy stages share.
int64_t CoresOf(const Arguments& arguments) {
  const int64_t usable = UsableCores();
  const int64_t cores = arguments.CountOr("cores", usable);
  if (cores <= usable) return cores;
  throw Error(fmt::format("{}: of the {} asked for, this process may use {}",
                          arguments.PlaceOf("cores"), Counted(cores, "core"), usable));
}

/// `cores`: 0 if stages sleep.
std::vector<Emulated> RunAll(const Arguments& arguments, int64_t cores) {
  std::vector<Emulated> all;
  for (const NamedSchedule& named : SchedulesOf(arguments)) {
    Program program = Unpaired(LowerWithReplicas(named, arguments));
    InFileOf(named, [&] { CheckRunnable(program.schedule()); });
    Costs costs = CostsOf(arguments, program.schedule().stages);
    Simulation simulated = Simulate(program, ActionTimes(program, costs, ReductionOf(arguments)),
                                    {.spans = true, .cores = cores});
    all.push_back({std::move(program), std::move(costs), {}, {}, std::move(simulated)});
  }
  const int64_t warm_up = WarmUpOf(arguments);
  for (const Emulated& one : all) CheckLeavesSteps(arguments, one.program.steps());
  const Nanoseconds deadline =
      arguments.Has("deadline") ? arguments.Duration("deadline") : TrainingOptions().deadline;
  const std::vector<Nanoseconds> given = ReductionOf(arguments);
  const Nanoseconds reduction = given.empty() ? Nanoseconds{0} : given.front();
  for (int64_t i = 0; i < arguments.CountOr("repeat", 1); ++i) {
    for (Emulated& one : all) {
      one.runs.push_back(cores == 0
                             ? Emulate(one.program, one.costs, reduction, deadline)
                             : EmulateOnCores(one.program, one.costs, cores, reduction, deadline));
    }
  }
  for (Emulated& one : all) {
    std::vector<const Trace*> traces;
    for (const Trace& run : one.runs) traces.push_back(&run);
    one.summary = Summarise(traces, warm_up);
  }
  return all;
}

std::string TextOf(const std::vector<Emulated>& all, int64_t cores) {
  std::vector<std::vector<std::string>> rows = {{"schedule", "makespan", "simulated", "error",
                                                 "step", "spread", "simulated", "error", "bubble",
                                                 "simulated"}};
  for (const Emulated& one : all) {
    const Metrics& measured = one.summary.metrics;
    const Metrics& simulated = one.simulated.metrics;
    rows.push_back({one.program.schedule().name, FormatDuration(measured.makespan),
                    FormatDuration(simulated.makespan),
                    fmt::format("{:+.2f} %", 100 * one.MakespanError()),
                    FormatDuration(measured.step_time.RoundedUp()),
                    fmt::format("{} .. {}", FormatDuration(one.summary.least.RoundedUp()),
                                FormatDuration(one.summary.greatest.RoundedUp())),
                    FormatDuration(simulated.step_time.RoundedUp()),
                    fmt::format("{:+.2f} %", 100 * one.summary.ErrorOf(simulated.step_time)),
                    FormatShare(measured.bubble.idle_of_makespan),
                    FormatShare(simulated.bubble.idle_of_makespan)});
  }
  const Schedule& first = all.front().program.schedule();
  const std::string copies =
      first.replicas > 1 ? fmt::format(" in {} replicas", first.replicas) : "";
  const std::string way = cores > 0 ? fmt::format("busy on {}, ", Counted(cores, "core")) : "";
  return fmt::format("emulated, {}on {} threads: {}{}, {} a step, {}\n\n{}", way, first.ranks,
                     Counted(first.ranks_per_replica(), "rank"), copies,
                     Counted(first.microbatches_per_replica(), "micro-batch"),
                     Counted(all.front().typical().steps, "step"), FormatTable(rows));
}

nlohmann::ordered_json JsonOf(const Emulated& one, int64_t cores) {
  RunResult result;
  result.trace = one.typical();
  const Schedule& schedule = one.program.schedule();
  result.stages = schedule.stages;
  result.replicas = schedule.replicas;
  result.ranks = schedule.ranks_per_replica();
  result.microbatches = schedule.microbatches_per_replica();
  result.metrics = one.summary.metrics;
  result.versions = MeasuredVersions(one.typical());
  Explain(result);
  nlohmann::ordered_json json = ResultJson(result);
  const Metrics& simulated = one.simulated.metrics;
  if (cores > 0) json["cores"] = cores;
  json["repetitions"] = one.runs.size();
  json["step_time_min_ns"] = one.summary.least.RoundedUp().count();
  json["step_time_max_ns"] = one.summary.greatest.RoundedUp().count();
  json["predicted"] = {{"makespan_ns", simulated.makespan.count()},
                       {"makespan_error", one.MakespanError()},
                       {"step_time_ns", simulated.step_time.RoundedUp().count()},
                       {"error", one.summary.ErrorOf(simulated.step_time)},
                       {"bubble_steady_state", simulated.bubble.steady_state}};
  return json;
}

void WriteFolder(const std::filesystem::path& folder, const std::vector<Emulated>& all) {
  std::vector<std::pair<std::string, const Trace*>> labelled;
  for (const Emulated& one : all) {
    const std::string& name = one.program.schedule().name;
    labelled.emplace_back(name + " measured", &one.typical());
    labelled.emplace_back(name + " simulated", &one.simulated.trace);
    WriteFile(folder / (name + ".measured.json"), ToChrome(one.typical()));
    WriteFile(folder / (name + ".simulated.json"), ToChrome(one.simulated.trace));
  }
  WriteFile(folder / "side-by-side.json", ToChrome(labelled));
}

}  // namespace

int RunEmulated(const Arguments& arguments, std::string_view compute) {
  RefuseTraining(arguments, compute);
  const int64_t cores = compute == "busy" ? CoresOf(arguments) : 0;
  const bool json = WantsJson(arguments);
  const std::string trace = arguments.TextOr("trace", "");
  const std::filesystem::path folder = arguments.TextOr("traces", "");
  if (!trace.empty()) {
    CheckWritable(trace);
    if (arguments.Texts("schedule").size() > 1) {
      throw Error("--trace holds one schedule; several go to a folder with --traces");
    }
  }
  if (!folder.empty()) {
    std::filesystem::create_directories(folder);
    CheckWritable(folder / "side-by-side.json");
  }
  const std::vector<Emulated> all = RunAll(arguments, cores);
  if (!trace.empty()) WriteFile(trace, ToChrome(all.front().typical()));
  if (!folder.empty()) WriteFolder(folder, all);
  if (!json) {
    fmt::print("{}", TextOf(all, cores));
    return 0;
  }
  std::vector<nlohmann::ordered_json> results;
  for (const Emulated& one : all) results.push_back(JsonOf(one, cores));
  fmt::print("{}", JsonText(std::move(results)));
  return 0;
}

}  // namespace pipelag
