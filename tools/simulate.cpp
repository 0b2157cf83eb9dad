// `pipelag simulate`: virtual execution of one schedule or several side by side.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "models/file.h"
#include "tools/flags.h"
#include "tools/model_flags.h"
#include "tools/result.h"
#include "tools/simulation.h"
#include "tools/table.h"
#include "tools/timeline.h"
#include "traces/chrome.h"

namespace pipelag {
namespace {

void WriteTrace(const std::string& file, const std::vector<Simulated>& runs, bool critical_path) {
  ChromeOptions options{.critical_path = critical_path};
  if (runs.size() == 1) {
    const RunResult& result = runs[0].result;
    if (!result.memory.empty()) options.memory = &result.memory;
    WriteFile(file, ToChrome(result.trace, options));
    return;
  }
  std::vector<std::pair<std::string, const Trace*>> labelled;
  for (const Simulated& run : runs) {
    labelled.emplace_back(run.result.trace.schedule, &run.result.trace);
  }
  WriteFile(file, ToChrome(labelled, options));
}

/// "0→1→2 forward, 2→1→0 backward": each payload's links, joined where one goes on from another.
std::string LinksText(const std::vector<Lane>& links) {
  constexpr size_t kMostNamed = 6;
  std::string text;
  for (const ActionKind payload : {ActionKind::kSendForward, ActionKind::kSendBackward}) {
    std::vector<Lane> left;
    for (const Lane& link : links) {
      if (link.payload == payload) left.push_back(link);
    }
    if (payload == ActionKind::kSendBackward) std::reverse(left.begin(), left.end());
    while (!left.empty()) {
      std::vector<int> chain{left[0].sender, left[0].receiver};
      left.erase(left.begin());
      for (auto next = left.begin(); next != left.end();) {
        if (next->sender != chain.back()) {
          ++next;
          continue;
        }
        chain.push_back(next->receiver);
        next = left.erase(next);
      }
      if (!text.empty()) text += ", ";
      text += chain.size() <= kMostNamed
                  ? fmt::format("{}", fmt::join(chain, "→"))
                  : fmt::format("{}→{}→…→{}", chain[0], chain[1], chain.back());
      text += payload == ActionKind::kSendForward ? " forward" : " backward";
    }
  }
  return text;
}

/// What holds the step time where it is.
std::string Limit(const Simulated& run) {
  const std::vector<int>& ranks = run.steady.critical_ranks;
  if (!run.exact) {
    return "what this run met: noise, or messages that slow each other, leave no exact step time "
           "but the mean of the run";
  }
  if (ranks.empty()) return "more actions than are looked into";
  const std::string reductions =
      run.steady.critical_groups.empty() ? "" : ", reductions before the update included";
  if (ranks.size() == 1) return fmt::format("the work of rank {} alone{}", ranks[0], reductions);
  std::string text = fmt::format("ranks {} waiting for each other", FormatRanges(ranks));
  if (!run.critical_links.empty()) text += " over links " + LinksText(run.critical_links);
  if (run.messages_take_time) text += ", their messages' time included";
  return text + reductions;
}

/// One clause per limit, for all schedules that share it.
std::string LimitsText(const std::vector<Simulated>& runs) {
  std::vector<std::pair<std::string, std::string>> clauses;  // limit, names
  for (const Simulated& run : runs) {
    const std::string limit = Limit(run);
    const auto same = std::find_if(clauses.begin(), clauses.end(),
                                   [&](const auto& clause) { return clause.first == limit; });
    if (same == clauses.end()) {
      clauses.emplace_back(limit, run.result.trace.schedule);
    } else {
      same->second += ", " + run.result.trace.schedule;
    }
  }
  std::string text;
  for (const auto& [limit, names] : clauses) {
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", names, limit);
  }
  return text;
}

/// Whether what updates wait for costs anything.
std::string ReductionsText(const Simulated& run) {
  if (!run.reductions) return "";
  const ReductionCost& cost = *run.reductions;
  std::string text = fmt::format("{}: reductions before the update ", run.result.trace.schedule);
  if (cost.hidden()) {
    text += "are hidden: the step is no longer for them";
    if (cost.longest_hidden) {
      text += fmt::format(", up to {} each", FormatDuration(*cost.longest_hidden));
    }
  } else {
    text += fmt::format("make the step {} longer", FormatDuration(cost.Cost()));
    if (!cost.longest_hidden) {
      text += " by their order alone";
    } else if (cost.longest_hidden->count() == 0) {
      text += ": nothing hides them";
    } else {
      text += fmt::format(": they do not fit, {} too long for the {} that would be hidden",
                          FormatDuration(cost.too_long), FormatDuration(*cost.longest_hidden));
    }
  }
  return text + '\n';
}

std::string StagesText(const Simulated& run) {
  if (!run.stages) return "";
  return fmt::format("{}: {}", run.result.trace.schedule, SplitText(*run.stages));
}

std::string UpdatesText(const Simulated& run) {
  if (run.optimizer.empty()) return "";
  std::vector<std::string> times;
  for (const Nanoseconds time : run.costs.update) times.push_back(FormatDuration(time));
  const bool alike = std::all_of(times.begin(), times.end(),
                                 [&](const std::string& time) { return time == times[0]; });
  return fmt::format("{}: an update by {} takes {}\n", run.result.trace.schedule, run.optimizer,
                     alike ? times[0] : fmt::format("{}", fmt::join(times, ", ")));
}

nlohmann::ordered_json ReductionsJson(const ReductionCost& cost) {
  nlohmann::ordered_json json = {
      {"hidden", cost.hidden()},
      {"cost_ns", cost.Cost().count()},
      {"step_time_without_exact", {cost.without.numerator, cost.without.denominator}}};
  if (cost.longest_hidden) {
    json["longest_hidden_ns"] = cost.longest_hidden->count();
    json["too_long_ns"] = cost.too_long.count();
  }
  return json;
}

std::string WarmUpText(const Simulated& run) {
  if (!run.warm_up) return "";
  return fmt::format("{}: the smallest warm-up that hides the latency is --warmup {} (slope {})\n",
                     run.result.trace.schedule, fmt::join(run.warm_up->warmup, ","),
                     run.warm_up->slope);
}

nlohmann::ordered_json LinksJson(const std::vector<Lane>& links) {
  auto json = nlohmann::ordered_json::array();
  for (const Lane& link : links) {
    json.push_back({{"sender", link.sender},
                    {"receiver", link.receiver},
                    {"payload", KindName(link.payload)}});
  }
  return json;
}

nlohmann::ordered_json JsonOf(const Simulated& run) {
  nlohmann::ordered_json json = ResultJson(run.result);
  if (!run.exact) json["step_time_is_mean_of_run"] = true;
  json["limited_by"] = {{"ranks", run.steady.critical_ranks},
                        {"messages", run.steady.crosses_links()},
                        {"links", LinksJson(run.critical_links)},
                        {"reductions", run.steady.critical_groups}};
  if (run.reductions) json["reductions"] = ReductionsJson(*run.reductions);
  if (run.stages) json["split"] = SplitJson(*run.stages);
  if (!run.optimizer.empty()) {
    auto& times = json["update_ns"] = nlohmann::ordered_json::array();
    for (const Nanoseconds time : run.costs.update) times.push_back(time.count());
  }
  if (run.warm_up) {
    json["latency_hidden_by"] = {{"warmup", run.warm_up->warmup}, {"slope", run.warm_up->slope}};
  }
  for (const Finding& finding : run.beyond_memory) json["findings"].push_back(finding.message);
  AddOutlook(run.outlook, json);
  if (!run.costs.source.empty()) json["costs_source"] = run.costs.source;
  if (run.throughput) AddThroughput(*run.throughput, run.gpus, json);
  return json;
}

std::string TextOf(const std::vector<Simulated>& runs) {
  std::string text;
  if (runs.size() == 1) {
    const Simulated& run = runs[0];
    text += run.drawn ? FormatTimeline(run.result.trace, TerminalColumns())
                      : "(too many actions to be drawn)\n";
    text += '\n' + ResultText(run.result) + fmt::format("\nlimited by {}\n", Limit(run)) +
            StagesText(run) + UpdatesText(run) + ReductionsText(run) + WarmUpText(run) +
            OutlookText(run.outlook);
  } else {
    std::vector<const RunResult*> results;
    for (const Simulated& run : runs) results.push_back(&run.result);
    text += SideBySide(results) + "\nwhat limits the step time: " + LimitsText(runs);
    text += '\n';
    for (const Simulated& run : runs) {
      text += StagesText(run) + UpdatesText(run) + ReductionsText(run) + WarmUpText(run);
    }
    for (const Simulated& run : runs) {
      const std::string outlook = OutlookText(run.outlook);
      if (!outlook.empty()) text += run.result.trace.schedule + ": " + outlook;
    }
  }
  for (const Simulated& run : runs) {
    for (const Finding& finding : run.beyond_memory) {
      text += fmt::format("{}: {}\n", run.result.trace.schedule, finding.message);
    }
  }
  for (const Simulated& run : runs) {
    if (!run.throughput) continue;
    text +=
        fmt::format("{}: {}", run.result.trace.schedule, ThroughputText(*run.throughput, run.gpus));
  }
  if (!runs[0].costs.source.empty()) text += fmt::format("times: {}\n", runs[0].costs.source);
  return text;
}

int Run(const Arguments& arguments) {
  const bool json = WantsJson(arguments);
  const std::string trace = arguments.Output("trace");
  if (trace.empty() && arguments.Has("critical-path")) {
    throw Error(fmt::format("{}: goes into a trace, but no --trace is asked for",
                            arguments.PlaceOf("critical-path")));
  }
  const std::vector<NamedSchedule> schedules = SchedulesOf(arguments);
  RefuseUselessOverlap(schedules, arguments);
  const Extras extras{.spans = !trace.empty(), .picture = !json && schedules.size() == 1};
  std::vector<Simulated> runs;
  for (const NamedSchedule& named : schedules) {
    runs.push_back(SimulateOne(named, arguments, extras));
  }
  if (!trace.empty()) WriteTrace(trace, runs, arguments.Has("critical-path"));
  const bool fits = std::all_of(runs.begin(), runs.end(),
                                [](const Simulated& run) { return run.beyond_memory.empty(); });
  if (!json) {
    fmt::print("{}", TextOf(runs));
    return fits ? 0 : 1;
  }
  std::vector<nlohmann::ordered_json> results;
  for (const Simulated& run : runs) results.push_back(JsonOf(run));
  fmt::print("{}", JsonText(std::move(results)));
  return fits ? 0 : 1;
}

}  // namespace

Subcommand SimulateCommand() {
  return {
      .name = "simulate",
      .operands = "[JOB]",
      .summary = "plays schedules in virtual time: step time, bubbles, memory, delay",
      .details =
          "JOB is a JSON file whose keys are flags, as in {\"schedule\": \"1f1b\", \"ranks\": 4,\n"
          "\"forward\": [\"1ms\", \"2ms\"]}; a flag overrides it. Several schedules stand side by\n"
          "side. Without any times a forward takes 1ms and a backward 2ms.\n\n"
          "With --machine times and sizes come from the model of costs, and throughput is "
          "shown.\n\n"
          "Examples: pipelag simulate --schedule gpipe,1f1b,2bw --ranks 4 --microbatches 8\n"
          "          --forward 10ms --backward 20ms --p2p-latency 8us --trace trace.json\n"
          "          pipelag simulate --schedule 1f1b,zb-h1 --ranks 4 --microbatches 16 --data 2\n"
          "          --model Llama-3.1-8B --machine dgx-h100 --sequence 8192 --zero 1",
      .most_operands = 1,
      .reads_job = true,
      .flags = Concatenate(
          {SimulationFlags(),
           {{"trace", "FILE", "write a Chrome trace (Perfetto, speedscope)"},
            {"critical-path", "", "show it in --trace as a process of its own", FlagValue::kNone},
            FormatFlag()}}),
      .run = Run,
  };
}

}  // namespace pipelag
