// The flags that several subcommands share, and what they mean: which schedules, what they cost.
// Must not know what is done with either.
#include "tools/flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "models/names.h"
#include "models/schedule/generators.h"
#include "models/schedule/text.h"
#include "tools/model_flags.h"
#include "tools/partition_flags.h"
#include "tools/schedule_file.h"

namespace pipelag {
namespace {

constexpr std::string_view kTimesOfCompute[] = {"forward", "backward", "backward-input",
                                                "backward-weight"};

std::vector<std::string_view> KnownSchedules() {
  std::vector<std::string_view> names;
  for (const Generator& generator : Generators()) names.push_back(generator.name);
  return names;
}

std::optional<bool> LateUpdate(const Arguments& arguments) {
  constexpr std::string_view kPlacements[] = {"early", "late"};
  if (!arguments.Has("update-placement")) return std::nullopt;
  return arguments.Choice("update-placement", kPlacements) == "late";
}

/// The variants of a schedule: flag, and which schedules honour it.
struct Variant {
  const char* flag;
  unsigned use;
};
constexpr Variant kVariants[] = {
    {"warmup-slope", Generator::kWarmUp}, {"warmup", Generator::kWarmUp},
    {"chunks", Generator::kChunks},       {"group", Generator::kGroup},
    {"body", Generator::kBody},           {"vertical-sync", Generator::kVerticalSync},
    {"memory-limit", Generator::kCosts},  {"update-placement", Generator::kLateUpdate},
};

/// Of several schedules side by side each takes the flags it has a use for; a flag that none of
/// them has a use for is a mistake.
void RefuseUseless(const Arguments& arguments, const std::vector<std::string>& names) {
  for (const Variant& variant : kVariants) {
    if (!arguments.Has(variant.flag)) continue;
    const bool used =
        std::any_of(Generators().begin(), Generators().end(), [&](const Generator& generator) {
          return (generator.uses & variant.use) != 0 &&
                 std::find(names.begin(), names.end(), generator.name) != names.end();
        });
    if (!used) {
      throw Error(fmt::format("{}: {} {} no use for it", arguments.PlaceOf(variant.flag),
                              fmt::join(names, ", "), names.size() == 1 ? "has" : "have"));
    }
  }
}

/// Layers are shared out over the stages as equal times would place them.
GivenCosts CostsForGenerator(const Generator& generator, const GeneratorOptions& options,
                             const std::optional<ModelledRun>& modelled,
                             const Arguments& arguments) {
  if (!HasLayers(arguments)) {
    const int chunks = options.chunks > 0 ? options.chunks : GeneratorOptions::kChunksOfZbAuto;
    const int stages = options.ranks * chunks;
    Estimate estimate;
    if (modelled) {
      estimate = EstimateOf(*modelled, options.ranks, stages, options.microbatches);
    }
    return GivenCostsOf(CostsOf(arguments, stages, modelled ? &estimate.costs : nullptr));
  }
  const Program even(Generate(generator.name, options), 1);
  Costs costs = StagesOf(arguments, even)->costs;
  OverrideLinks(arguments, even.schedule().stages, costs);
  return GivenCostsOf(costs);
}

NamedSchedule GenerateByFlags(const Generator& generator, const Arguments& arguments) {
  GeneratorOptions options;
  options.ranks = static_cast<int>(arguments.Count("ranks"));
  options.microbatches = static_cast<int>(arguments.Count("microbatches"));
  const std::optional<ModelledRun> modelled = ModelledRunOf(arguments);
  options.reduction = arguments.Has("reduction") || arguments.Has("gradient-bytes") ||
                      ReplicasReduce(arguments) || (modelled && ReducesGradients(modelled->layout));
  options.norm = WantsNorm(arguments);
  options.barrier = WantsBarrier(arguments);
  options.tied = arguments.Has("tied");
  const auto wants = [&](const char* flag, unsigned use) {
    return arguments.Has(flag) && (generator.uses & use) != 0;
  };
  if (wants("warmup-slope", Generator::kWarmUp)) {
    options.warmup_slope = static_cast<int>(arguments.Count("warmup-slope"));
  }
  if (wants("warmup", Generator::kWarmUp)) options.warmup = arguments.SmallNumbers("warmup");
  if (wants("chunks", Generator::kChunks)) {
    options.chunks = static_cast<int>(arguments.Count("chunks"));
  }
  if (wants("group", Generator::kGroup)) {
    options.group = arguments.Text("group") == "flexible"
                        ? GeneratorOptions::kFlexibleGroup
                        : static_cast<int>(arguments.Count("group"));
  }
  if (wants("body", Generator::kBody)) options.body = arguments.Text("body");
  options.vertical_sync = wants("vertical-sync", Generator::kVerticalSync);
  if (wants("memory-limit", Generator::kCosts)) {
    options.memory_limit = arguments.Decimal("memory-limit");
    if (!(options.memory_limit > 0)) {
      throw Error(fmt::format("{}: must be positive, not {}", arguments.PlaceOf("memory-limit"),
                              arguments.Text("memory-limit")));
    }
  }
  if (wants("update-placement", Generator::kLateUpdate)) {
    options.late_update = LateUpdate(arguments);
  }
  if ((generator.uses & Generator::kCosts) != 0) {
    options.costs = CostsForGenerator(generator, options, modelled, arguments);
  }
  return {Generate(generator.name, options), "", generator.facts(options)};
}

/// What is shown and written of several schedules goes by their names: a file that has another's is
/// named by itself.
void MakeNamesDiffer(std::vector<NamedSchedule>& schedules, const Arguments& arguments) {
  const auto has_twin = [&](const NamedSchedule& named) {
    return std::any_of(schedules.begin(), schedules.end(), [&](const NamedSchedule& other) {
      return &other != &named && other.schedule.name == named.schedule.name;
    });
  };
  std::vector<NamedSchedule*> renamed;
  for (NamedSchedule& named : schedules) {
    if (!named.file.empty() && has_twin(named)) renamed.push_back(&named);
  }
  for (NamedSchedule* named : renamed) {
    named->schedule.name = std::filesystem::path(named->file).filename().string();
  }
  for (const NamedSchedule& named : schedules) {
    if (!has_twin(named)) continue;
    throw Error(
        fmt::format("{}: two of the schedules have the name {}, so that nothing would tell "
                    "them apart",
                    arguments.PlaceOf("schedule"), named.schedule.name));
  }
}

Costs DefaultCosts(int stages) {
  const auto all = [&](int64_t milliseconds) {
    return std::vector<Nanoseconds>(static_cast<size_t>(stages),
                                    std::chrono::milliseconds(milliseconds));
  };
  Costs costs;
  costs.forward = all(1);
  costs.backward = all(2);
  costs.backward_input = all(1);
  costs.backward_weight = all(1);
  costs.source = "defaults: forward 1ms, backward 2ms";
  return costs;
}

Costs CostsFromFile(const Arguments& arguments, int stages) {
  const std::string file = arguments.Text("costs");
  Costs costs = ReadCosts(file);
  if (costs.stages() != stages) {
    throw Error(fmt::format("{}: /forward_ns has times for {} stages, but the schedule has {}",
                            file, costs.stages(), stages));
  }
  return costs;
}

void RequireTimes(const Arguments& arguments) {
  const auto require = [&](const std::string& flag, const char* hint) {
    if (arguments.Has(flag)) return;
    throw Error(fmt::format("--{} is missing, though other times are given{}", flag, hint));
  };
  require("forward", "");
  const bool input = arguments.Has("backward-input");
  const bool weight = arguments.Has("backward-weight");
  if (!input && !weight) {
    require("backward", " (or give --backward-input with --backward-weight)");
  } else {
    require("backward-input", "");
    require("backward-weight", "");
  }
}

}  // namespace

std::vector<Flag> ScheduleFlags() {
  return {
      {"schedule", "NAME[,NAME...]",
       fmt::format("known schedules ({}) or paths of .csv files",
                   fmt::join(KnownSchedules(), " "))},
      {"sends", "rendezvous|eager",
       "of a .csv with sends: whether a send waits for its receive (default: rendezvous)"},
      {"ranks", "COUNT", "pipeline size"},
      {"microbatches", "COUNT", "micro-batches per update"},
      {"warmup-slope", "COUNT",
       "warm-up forwards of stage s: slope times the stages behind it (default: the schedule's)"},
      {"warmup", "COUNT[,COUNT...]", "warm-up forwards of each stage, instead of a slope"},
      {"chunks", "COUNT", "stages per rank, of the schedules that have several"},
      {"group", "COUNT|flexible",
       "of interleaved-1f1b: micro-batches through one chunk before the next (default: --ranks)"},
      {"body", "SCHEDULE",
       "of 2bw, pipedream and paci: the order of 1f1b, interleaved-1f1b, zb-h1, zb-h2 or zb-v"},
      {"vertical-sync", "", "of pipedream: every stage reads the weight version of the first",
       FlagValue::kNone},
      {"memory-limit", "COUNT",
       "of zb-auto: activations a rank may hold, in whole ranks' (default: --ranks, as 1f1b)"},
      {"flush-barrier", "none|global", "whether all ranks wait for each other before every update"},
      {"clip-norm", "NORM",
       "clip gradients to this global norm: all ranks wait for it before every update (a "
       "simulation "
       "takes it without a value too)",
       FlagValue::kOptional},
      {"reduction", "TIME", "all-reduce every stage's gradients before its update, in this time"},
      {"update-placement", "early|late",
       "of 2bw: update behind a batch's last backward, or before the forward that needs it"},
  };
}

Flag StepsFlag() {
  return {"steps", "COUNT",
          "length of the run (default: 1 with a flush, else enough to leave the warm-up)"};
}

std::vector<Flag> CostFlags() {
  return {
      {"forward", "TIME[,TIME...]",
       "forward of a stage: one time for all or one per stage (default without any times: 1ms)"},
      {"backward", "TIME[,TIME...]", "backward of a stage (default without any times: 2ms)"},
      {"backward-input", "TIME[,TIME...]", "its part for the input, with --backward-weight"},
      {"backward-weight", "TIME[,TIME...]", "its part for the weights, with --backward-input"},
      {"overlap", "TIME[,TIME...]",
       "of dualpipe and dualpipe-v: an F and a B that overlap, by the stage of the F (default: as "
       "long as one after the other)"},
      {"update", "TIME[,TIME...]", "optimizer update of a stage (default: 0)"},
      {"p2p-latency", "TIME", "from the end of sending to arrival (default: 0)"},
      {"p2p-bandwidth", "RATE",
       "between two ranks, for each direction of each kind of message, forward and backward "
       "(default: unlimited)"},
      {"activation-bytes", "SIZE", "of one message between two stages (default: 0)"},
      {"costs", "FILE", "cost file of 'pipelag calibrate'; the flags above override it"},
  };
}

void RefuseUselessTimes(const Arguments& arguments, const std::string& reason) {
  const std::vector<std::string> names =
      arguments.Has("schedule") ? arguments.Texts("schedule") : std::vector<std::string>();
  const bool wanted =
      std::any_of(Generators().begin(), Generators().end(), [&](const Generator& generator) {
        return (generator.uses & Generator::kCosts) != 0 &&
               std::find(names.begin(), names.end(), generator.name) != names.end();
      });
  if (!wanted) RefuseGiven(arguments, CostFlags(), reason);
}

Flag WarmUpFlag() { return {"warm-up", "STEPS", "first steps to leave out (default: 1)"}; }

int64_t WarmUpOf(const Arguments& arguments) { return arguments.NumberOr("warm-up", 1); }

void CheckLeavesSteps(const Arguments& arguments, int64_t steps) {
  if (!arguments.Has("warm-up") || WarmUpOf(arguments) < steps) return;
  throw Error(fmt::format("{}: {} of {} steps leave nothing to measure",
                          arguments.PlaceOf("warm-up"), WarmUpOf(arguments), steps));
}

std::vector<NamedSchedule> SchedulesOf(const Arguments& arguments,
                                       const std::vector<std::string>& beside) {
  std::vector<NamedSchedule> schedules;
  const std::vector<std::string> names = arguments.Texts("schedule");
  LateUpdate(arguments);  // a slip of the pen is named before its want of use
  std::vector<std::string> users = names;
  users.insert(users.end(), beside.begin(), beside.end());
  RefuseUseless(arguments, users);
  for (size_t i = 0; i < names.size(); ++i) {
    if (std::find(names.begin(), names.begin() + static_cast<ptrdiff_t>(i), names[i]) !=
        names.begin() + static_cast<ptrdiff_t>(i)) {
      throw Error(fmt::format("{}: '{}' is named twice", arguments.PlaceOf("schedule"), names[i]));
    }
  }
  for (const std::string& name : names) {
    const auto generator = std::find_if(Generators().begin(), Generators().end(),
                                        [&](const Generator& g) { return g.name == name; });
    if (generator != Generators().end()) {
      schedules.push_back(GenerateByFlags(*generator, arguments));
    } else if (std::filesystem::path(name).extension() == ".csv" ||
               name.find('/') != std::string::npos) {
      schedules.push_back(ReadScheduleFile(name, arguments));
    } else {
      throw Error(
          fmt::format("{}: '{}' is neither a known schedule nor a .csv file; the nearest "
                      "schedule is '{}'",
                      arguments.PlaceOf("schedule"), name, Nearest(name, KnownSchedules())));
    }
  }
  MakeNamesDiffer(schedules, arguments);
  const bool any_file = std::any_of(schedules.begin(), schedules.end(),
                                    [](const NamedSchedule& named) { return !named.file.empty(); });
  if (arguments.Has("sends") && !any_file) {
    throw Error(fmt::format("{}: is for the sends of a .csv file, but no file is named",
                            arguments.PlaceOf("sends")));
  }
  return schedules;
}

Program Lower(const NamedSchedule& named, const Arguments& arguments) {
  return InFileOf(named, [&] {
    const Program one_step(named.schedule, 1);
    return one_step.WithSteps(arguments.Has("steps") ? arguments.Count("steps")
                                                     : DefaultSteps(one_step.schedule()));
  });
}

void RefuseUselessOverlap(const std::vector<NamedSchedule>& schedules, const Arguments& arguments) {
  if (!arguments.Has("overlap")) return;
  for (const NamedSchedule& named : schedules) {
    for (const auto& body : named.schedule.body) {
      for (const Action& action : body) {
        if (action.overlaps_next) return;
      }
    }
  }
  throw Error(fmt::format("{}: no F overlaps a B in {}", arguments.PlaceOf("overlap"),
                          fmt::join(arguments.Texts("schedule"), ", ")));
}

Costs CostsOf(const Arguments& arguments, int stages, const Costs* modelled) {
  const bool any_time =
      std::any_of(std::begin(kTimesOfCompute), std::end(kTimesOfCompute),
                  [&](std::string_view flag) { return arguments.Has(std::string(flag)); });
  Costs costs;
  if (arguments.Has("costs")) {
    costs = CostsFromFile(arguments, stages);
  } else if (modelled != nullptr) {
    costs = *modelled;
  } else if (!any_time) {
    costs = DefaultCosts(stages);
  }
  const auto times = [&](const std::string& flag, std::vector<Nanoseconds>& of_stages) {
    if (!arguments.Has(flag)) return;
    of_stages = PerStage(arguments.Durations(flag), stages, arguments.PlaceOf(flag));
  };
  times("forward", costs.forward);
  times("backward", costs.backward);
  times("backward-input", costs.backward_input);
  times("backward-weight", costs.backward_weight);
  times("overlap", costs.overlap);
  if (any_time && !arguments.Has("costs") && modelled == nullptr) RequireTimes(arguments);
  if (costs.update.empty()) costs.update.resize(static_cast<size_t>(stages));
  OverrideLinks(arguments, stages, costs);
  return costs;
}

void OverrideLinks(const Arguments& arguments, int stages, Costs& costs) {
  if (arguments.Has("update")) {
    costs.update = PerStage(arguments.Durations("update"), stages, arguments.PlaceOf("update"));
  }
  if (arguments.Has("p2p-latency")) costs.p2p_latency = arguments.Duration("p2p-latency");
  if (arguments.Has("p2p-bandwidth")) costs.p2p_bandwidth = arguments.Rate("p2p-bandwidth");
  if (arguments.Has("activation-bytes"))
    costs.activation_bytes = arguments.Size("activation-bytes");
}

GivenCosts GivenCostsOf(const Costs& costs) {
  GivenCosts given;
  given.latency = costs.p2p_latency.count();
  const bool split = !costs.backward_input.empty() && !costs.backward_weight.empty();
  for (size_t s = 0; s < costs.forward.size(); ++s) {
    given.forward.push_back(costs.forward[s].count());
    given.backward_input.push_back((split ? costs.backward_input : costs.backward)[s].count());
    given.backward_weight.push_back(split ? costs.backward_weight[s].count() : 0);
  }
  return given;
}

std::vector<Nanoseconds> ReductionOf(const Arguments& arguments) {
  if (!arguments.Has("reduction")) return {};
  return {arguments.Duration("reduction")};
}

void RefuseGiven(const Arguments& arguments, const std::vector<Flag>& flags,
                 const std::string& why) {
  for (const Flag& flag : flags) {
    if (!arguments.Has(flag.name)) continue;
    const std::string place = arguments.PlaceOf(flag.name);
    if (place.starts_with("--")) throw Error(fmt::format("{}: {}", place, why));
  }
}

std::vector<Flag> Concatenate(std::vector<std::vector<Flag>> groups) {
  std::vector<Flag> all;
  for (std::vector<Flag>& group : groups) all.insert(all.end(), group.begin(), group.end());
  return all;
}

}  // namespace pipelag
