// The conditions that a simulated run meets beyond fixed times: a cluster whose links are shared,
// cores that are, noise, failing ranks; and what they do to it. Must not know how a run is shown.
#include "tools/conditions.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "sim/unequal.h"
#include "tools/replica_flags.h"
#include "tools/table.h"

namespace pipelag {
namespace {

/// What a global norm sends: one single-precision number.
constexpr Bytes kNormBytes = 4;

void Require(const Arguments& arguments, const char* flag, const char* needed) {
  if (!arguments.Has(flag) || arguments.Has(needed)) return;
  throw Error(fmt::format("{}: needs --{}", arguments.PlaceOf(flag), needed));
}

/// The error of a parser, spoken of by the flag.
template <class Parse>
auto Parsed(const Arguments& arguments, const char* flag, const std::string& text, Parse parse) {
  try {
    return parse(text);
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", arguments.PlaceOf(flag), error.what()));
  }
}

ReductionAlgorithm AlgorithmOf(const Arguments& arguments) {
  constexpr std::string_view kNames[] = {"ring", "tree", "hierarchical"};
  if (!arguments.Has("reduction-algorithm")) return ReductionAlgorithm::kRing;
  const std::string name = arguments.Choice("reduction-algorithm", kNames);
  if (name == "tree") return ReductionAlgorithm::kTree;
  return name == "ring" ? ReductionAlgorithm::kRing : ReductionAlgorithm::kHierarchical;
}

std::vector<Bytes> GradientsOf(const Arguments& arguments, int stages) {
  if (!arguments.Has("gradient-bytes")) return {};
  std::vector<Bytes> sizes;
  for (const std::string& text : arguments.Texts("gradient-bytes")) {
    sizes.push_back(Parsed(arguments, "gradient-bytes", text, ParseBytes));
  }
  const auto wanted = static_cast<size_t>(stages);
  if (sizes.size() == 1) sizes.resize(wanted, sizes.front());
  if (sizes.size() != wanted) {
    throw Error(fmt::format("{} has {} entries: give one for all stages, or one for each of the {}",
                            arguments.PlaceOf("gradient-bytes"), sizes.size(), stages));
  }
  return sizes;
}

void ReadNetwork(const Arguments& arguments, const Schedule& schedule, Conditions& conditions) {
  for (const char* flag : {"gradient-bytes", "reduction-algorithm"}) {
    Require(arguments, flag, "cluster");
  }
  if (!arguments.Has("cluster")) {
    // Alike and with links of their own, replicas do what one of them does, in step with it.
    const bool differ = arguments.Has("noise") || arguments.Has("stalls") ||
                        arguments.Has("rank-factors") || arguments.Has("machine");
    if (differ) Require(arguments, "replicas", "cluster");
    return;
  }
  for (const char* flag : {"p2p-latency", "p2p-bandwidth"}) {
    if (!arguments.Has(flag)) continue;
    throw Error(fmt::format("{}: the links of --cluster have their own", arguments.PlaceOf(flag)));
  }
  conditions.cluster = std::make_shared<const Cluster>(ReadCluster(arguments.Text("cluster")));
  conditions.network = {.cluster = conditions.cluster.get(),
                        .replicas = static_cast<int>(arguments.CountOr("replicas", 1)),
                        .algorithm = AlgorithmOf(arguments),
                        .gradient_bytes = GradientsOf(arguments, schedule.stages),
                        .norm_bytes = kNormBytes};
}

void ReadCores(const Arguments& arguments, Conditions& conditions) {
  if (!arguments.Has("cores")) return;
  for (const char* flag : {"cluster", "machine"}) {
    if (!arguments.Has(flag)) continue;
    throw Error(fmt::format("{}: the GPUs of --{} are each a rank's own",
                            arguments.PlaceOf("cores"), flag));
  }
  conditions.cores = arguments.Count("cores");
  conditions.network.replicas = ReplicasOf(arguments);
}

void ReadNoise(const Arguments& arguments, int ranks, Conditions& conditions) {
  NoiseOptions& noise = conditions.noise;
  noise.seed = static_cast<uint64_t>(arguments.NumberOr("seed", 0));
  if (arguments.Has("noise")) noise.sigma = arguments.Decimal("noise");
  if (arguments.Has("rank-factors")) {
    for (const std::string& text : arguments.Texts("rank-factors")) {
      noise.rank_factors.push_back(Parsed(arguments, "rank-factors", text, ParseDecimal));
    }
  }
  if (arguments.Has("stalls")) {
    const std::string text = arguments.Text("stalls");
    const size_t colon = text.find(':');
    if (colon == std::string::npos) {
      throw Error(fmt::format("{}: '{}' is not a probability and a time, as in 0.001:50ms",
                              arguments.PlaceOf("stalls"), text));
    }
    noise.stall_probability = Parsed(arguments, "stalls", text.substr(0, colon), ParseDecimal);
    noise.stall = Parsed(arguments, "stalls", text.substr(colon + 1), ParseDuration);
  }
  CheckNoise(noise, ranks);
  conditions.seeds = static_cast<int>(arguments.CountOr("seeds", 0));
  if (conditions.seeds > 0 && !noise.any()) {
    throw Error(fmt::format("{}: without --noise, --stalls or --rank-factors all seeds are alike",
                            arguments.PlaceOf("seeds")));
  }
}

void ReadFaults(const Arguments& arguments, int ranks, Conditions& conditions) {
  for (const char* flag : {"checkpoint-cost", "checkpoint-interval", "restart"}) {
    Require(arguments, flag, "mtbf");
  }
  if (!arguments.Has("mtbf")) return;
  const auto time = [&](const char* flag) {
    return arguments.Has(flag) ? arguments.Duration(flag) : Nanoseconds{0};
  };
  FaultModel model{.ranks = ranks,
                   .rank_mtbf = time("mtbf"),
                   .checkpoint_interval = time("checkpoint-interval"),
                   .checkpoint_cost = time("checkpoint-cost"),
                   .restart = time("restart")};
  if (!arguments.Has("checkpoint-interval")) {
    if (model.checkpoint_cost.count() == 0) {
      throw Error(
          fmt::format("{}: give --checkpoint-interval, or a --checkpoint-cost to find the best one",
                      arguments.PlaceOf("mtbf")));
    }
    model.checkpoint_interval = BestCheckpointInterval(model);
  }
  CheckFaults(model);
  conditions.faults = model;
}

nlohmann::ordered_json QuantilesJson(const Quantiles& quantiles) {
  return {
      {"p5", quantiles.p5.count()}, {"p50", quantiles.p50.count()}, {"p95", quantiles.p95.count()}};
}

std::string QuantilesText(const Quantiles& quantiles) {
  return fmt::format("{} .. {} .. {}", FormatDuration(quantiles.p5), FormatDuration(quantiles.p50),
                     FormatDuration(quantiles.p95));
}

}  // namespace

std::vector<Flag> ConditionFlags() {
  return {
      {"cluster", "FILE", "GPUs and links (JSON): messages and reductions share their bandwidth"},
      {"replicas", "COUNT",
       "data-parallel copies of the pipeline: on the cluster, or all alike, with --reduction "
       "(default: 1)"},
      {"gradient-bytes", "SIZE[,SIZE...]",
       "gradients of a stage: reduced over the replicas before its update, as messages"},
      {"reduction-algorithm", "ring|tree|hierarchical", "how they are (default: ring)"},
      {"cores", "COUNT",
       "ranks share that many cores of one machine: where more of them compute at once, each goes "
       "on the slower for it (default: a core for each)"},
      {"noise", "SIGMA", "log-normal jitter of every action, of median 1 (0.05: about 5 %)"},
      {"stalls", "PROBABILITY:TIME", "an action's chance to take that much longer (0.001:50ms)"},
      {"rank-factors", "FACTOR[,FACTOR...]", "what each rank's times are multiplied with"},
      {"microbatch-spread", "SIGMA",
       "log-normal spread of what micro-batches cost around their mean, on every stage alike: "
       "packed "
       "sequences, experts' load"},
      {"seed", "NUMBER", "of the noise and the spread (default: 0)"},
      {"seeds", "COUNT", "run that many seeds and show how the times spread"},
      {"mtbf", "TIME", "mean time between failures of one rank: shows the goodput"},
      {"checkpoint-cost", "TIME", "of one checkpoint, while nothing else goes on (default: 0)"},
      {"checkpoint-interval", "TIME", "of work between two checkpoints (default: the best one)"},
      {"restart", "TIME", "from a failure until work goes on at the last checkpoint (default: 0)"},
  };
}

Conditions ConditionsOf(const Arguments& arguments, const Schedule& schedule) {
  Conditions conditions;
  ReadNetwork(arguments, schedule, conditions);
  ReadCores(arguments, conditions);
  const int ranks = schedule.ranks * static_cast<int>(arguments.CountOr("replicas", 1));
  ReadNoise(arguments, ranks, conditions);
  ReadFaults(arguments, ranks, conditions);
  return conditions;
}

void ApplySpread(const Arguments& arguments, const Program& program, ActionTimes& times) {
  if (!arguments.Has("microbatch-spread")) return;
  const auto seed = static_cast<uint64_t>(arguments.NumberOr("seed", 0));
  const std::vector<double> factors =
      Parsed(arguments, "microbatch-spread", arguments.Text("microbatch-spread"),
             [&](const std::string& text) {
               return MicrobatchFactors(program.schedule().microbatches, ParseDecimal(text), seed);
             });
  MakeUnequal(program, factors, times);
}

Outlook OutlookOf(const Program& program, const ActionTimes& times,
                  const SimulationOptions& options, const Conditions& conditions) {
  Outlook outlook;
  outlook.seeds = conditions.seeds;
  outlook.faults = conditions.faults;
  if (conditions.seeds > 0) {
    outlook.spread = SpreadOverSeeds(program, times, options, conditions.seeds);
  }
  if (conditions.faults) outlook.goodput = ExpectedGoodput(*conditions.faults);
  return outlook;
}

void AddOutlook(const Outlook& outlook, nlohmann::ordered_json& json) {
  if (outlook.spread) {
    json["spread"] = {{"seeds", outlook.seeds},
                      {"makespan_ns", QuantilesJson(outlook.spread->makespan)},
                      {"step_time_ns", QuantilesJson(outlook.spread->step_time)}};
  }
  if (outlook.faults) {
    json["goodput"] = {
        {"share", outlook.goodput},
        {"checkpoint_interval_ns", outlook.faults->checkpoint_interval.count()},
        {"best_checkpoint_interval_ns", BestCheckpointInterval(*outlook.faults).count()}};
  }
}

std::string OutlookText(const Outlook& outlook) {
  std::string text;
  if (outlook.spread) {
    text += fmt::format("over {} (5th .. 50th .. 95th percentile): makespan {}, step time {}\n",
                        Counted(outlook.seeds, "seed"), QuantilesText(outlook.spread->makespan),
                        QuantilesText(outlook.spread->step_time));
  }
  if (outlook.faults) {
    text += fmt::format("goodput {} with a checkpoint every {} of work (best: {})\n",
                        FormatShare(outlook.goodput),
                        FormatDuration(outlook.faults->checkpoint_interval),
                        FormatDuration(BestCheckpointInterval(*outlook.faults)));
  }
  return text;
}

}  // namespace pipelag
