// `pipelag simulate`: virtual execution of one schedule or several side by side.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
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

/// Figures of stages or ranks in one line; of more of them the text says less, JSON all.
constexpr size_t kMostListed = 8;

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
      std::vector<int> chain{left[0].sender};
      std::vector<Lane> others;
      for (const Lane& link : left) {
        if (link.sender == chain.back()) {
          chain.push_back(link.receiver);
        } else {
          others.push_back(link);
        }
      }
      left = std::move(others);
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
    return "what this run met: noise, or messages or ranks that slow each other, leave no exact "
           "step time but the mean of the run";
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
  const bool none_fits = cost.longest_hidden && cost.longest_hidden->count() == 0;
  if (cost.hidden() && none_fits) {
    text += "take no time; nothing would hide them if they did";
  } else if (cost.hidden()) {
    text += "are hidden: the step is no longer for them";
    if (cost.longest_hidden) {
      text += fmt::format(", up to {} each", FormatDuration(*cost.longest_hidden));
    }
  } else {
    text += fmt::format("make the step {} longer", FormatDuration(cost.Cost()));
    if (!cost.longest_hidden) {
      text += " by their order alone";
    } else if (none_fits) {
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
  std::string text = alike ? times[0] : fmt::format("{}", fmt::join(times, ", "));
  if (!alike && times.size() > kMostListed) {
    const auto [least, most] =
        std::minmax_element(run.costs.update.begin(), run.costs.update.end());
    text = fmt::format("{} to {}", FormatDuration(*least), FormatDuration(*most));
  }
  return fmt::format("{}: an update by {} takes {}\n", run.result.trace.schedule, run.optimizer,
                     text);
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
  const std::vector<int>& counts = run.warm_up->warmup;
  if (counts.size() > kMostListed) {
    return fmt::format(
        "{}: --warmup-slope {} hides the latency; the smallest warm-up that does begins with {} "
        "(--format json has all of it)\n",
        run.result.trace.schedule, run.warm_up->slope, counts[0]);
  }
  return fmt::format("{}: the smallest warm-up that hides the latency is --warmup {} (slope {})\n",
                     run.result.trace.schedule, fmt::join(counts, ","), run.warm_up->slope);
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

nlohmann::ordered_json JsonOf(const Simulated& run, double tokens) {
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
  if (!run.throughput) return json;
  AddThroughput(*run.throughput, run.gpus, json);
  if (tokens > 0) AddTraining(*run.throughput, run.gpus, tokens, json);
  return json;
}

/// Ranks that hold more than their device.
std::string BeyondText(const Simulated& run) {
  std::string text;
  const std::vector<Finding>& findings = run.beyond_memory;
  const size_t shown = findings.size() > kMostListed ? kMostListed / 2 : findings.size();
  for (size_t i = 0; i < shown; ++i) {
    text += fmt::format("{}: {}\n", run.result.trace.schedule, findings[i].message);
  }
  if (shown < findings.size()) {
    text += fmt::format("{}: so do {} more of {} ranks, each by its own amount (--format json)\n",
                        run.result.trace.schedule, findings.size() - shown, run.result.trace.ranks);
  }
  return text;
}

std::string TextOf(const std::vector<Simulated>& runs, double tokens) {
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
  if (!runs[0].costs.source.empty()) text += fmt::format("times: {}\n", runs[0].costs.source);
  for (const Simulated& run : runs) text += BeyondText(run);
  for (const Simulated& run : runs) {
    if (!run.throughput) continue;
    const std::string& name = run.result.trace.schedule;
    text += fmt::format("{}: {}", name, ThroughputText(*run.throughput, run.gpus));
    if (tokens > 0) {
      text += fmt::format("{}: {}", name, TrainingText(*run.throughput, run.gpus, tokens));
    }
  }
  return text;
}

/// "15T", "300B", "1e12": 0 without --tokens.
double TokensOf(const Arguments& arguments) {
  if (!arguments.Has("tokens")) return 0;
  const std::string place = arguments.PlaceOf("tokens");
  if (!arguments.Has("machine")) throw Error(fmt::format("{}: needs --machine", place));
  std::string text = arguments.Text("tokens");
  double unit = 1;
  for (const auto& [letter, value] : {std::pair{'M', 1e6}, {'B', 1e9}, {'T', 1e12}}) {
    if (text.back() == letter) unit = value;
  }
  if (unit > 1) text.pop_back();
  constexpr double kMost = 1e18;
  try {
    const double tokens = unit * ParseDecimal(text);
    if (tokens >= 1 && tokens <= kMost) return tokens;
  } catch (const Error&) {
  }
  throw Error(fmt::format("{}: '{}' is not a number of tokens up to {}, as in 15T, 300B or 500M",
                          place, arguments.Text("tokens"), kMost));
}

void PrintNotes(const Arguments& arguments, const std::vector<Simulated>& runs) {
  const std::optional<ModelledRun> modelled = ModelledRunOf(arguments);
  if (modelled) fmt::print(stderr, "{}", NotesOn(*modelled, runs[0].gpus));
}

int Run(const Arguments& arguments) {
  const double tokens = TokensOf(arguments);
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
  PrintNotes(arguments, runs);
  const bool fits = std::all_of(runs.begin(), runs.end(),
                                [](const Simulated& run) { return run.beyond_memory.empty(); });
  if (!json) {
    fmt::print("{}", TextOf(runs, tokens));
    return fits ? 0 : 1;
  }
  std::vector<nlohmann::ordered_json> results;
  for (const Simulated& run : runs) results.push_back(JsonOf(run, tokens));
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
            {"tokens", "COUNT",
             "with --machine: what training on so many takes at this speed (15T, 300B)"},
            {"critical-path", "", "show it in --trace as a process of its own", FlagValue::kNone},
            FormatFlag()}}),
      .run = Run,
  };
}

}  // namespace pipelag
