// The flags that say how layers are shared out to stages, where the times of layers are known.
#include "tools/partition_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "models/cost/network_split.h"
#include "models/profile.h"
#include "tools/flags.h"
#include "tools/model_flags.h"
#include "tools/table.h"
#include "tools/update_flags.h"

namespace pipelag {
namespace {

constexpr const char* kSources[] = {"profile", "layer-times"};

std::string_view KindName(SplitKind kind) {
  switch (kind) {
    case SplitKind::kEven:
      return "even";
    case SplitKind::kAuto:
      return "auto";
    case SplitKind::kByHand:
      return "by hand";
  }
  CHECK(false);
}

/// What layers say for themselves cannot be said by flags as well.
void RefuseOtherTimes(const Arguments& arguments, const char* source) {
  for (const char* flag :
       {"forward", "backward", "backward-input", "backward-weight", "overlap", "costs",
        "activation-bytes", "weight-bytes", "accumulator-bytes", "optimizer-bytes",
        "activation-memory", "freed-at-input", "device-compute", "device-bandwidth"}) {
    if (!arguments.Has(flag)) continue;
    throw Error(
        fmt::format("{}: the layers of --{} have their own", arguments.PlaceOf(flag), source));
  }
  for (const Flag& flag : Concatenate({ModelFlags(), UpdateFlags()})) {
    if (flag.name == "split" || !arguments.Has(flag.name) ||
        !arguments.PlaceOf(flag.name).starts_with("--")) {
      continue;  // a job file may serve others too
    }
    throw Error(fmt::format("--{}: the layers of --{} have their times whatever it says", flag.name,
                            source));
  }
}

std::vector<int> EvenCounts(const std::vector<NetworkPart>& parts, int stages) {
  const auto layers =
      std::count_if(parts.begin(), parts.end(), [](const NetworkPart& part) { return part.layer; });
  std::vector<int> counts;
  for (const LayerRange& range : SplitLayers(static_cast<int>(layers), stages)) {
    counts.push_back(range.last - range.first);
  }
  return counts;
}

std::vector<int> CountsByHand(const Arguments& arguments, int stages) {
  const std::vector<int> counts = arguments.SmallNumbers("split");
  if (static_cast<int>(counts.size()) != stages) {
    throw Error(fmt::format("{}: names {} stages, but there are {}", arguments.PlaceOf("split"),
                            counts.size(), stages));
  }
  return counts;
}

}  // namespace

std::vector<Flag> PartitionFlags() {
  return {
      {"profile", "FILE",
       "layers with their times and sizes, as PipeDream's profiler writes them (graph.txt)"},
      {"layer-times", "FILE.csv", "layers with their times and sizes, as a table"},
  };
}

SplitKind SplitKindOf(const Arguments& arguments) {
  if (!arguments.Has("split")) return SplitKind::kEven;
  const std::vector<std::string> texts = arguments.Texts("split");
  if (texts.size() == 1 && texts[0] == "even") return SplitKind::kEven;
  if (texts.size() == 1 && texts[0] == "auto") return SplitKind::kAuto;
  return SplitKind::kByHand;
}

bool Stages::sizes_known() const {
  return std::any_of(memory.stages.begin(), memory.stages.end(), [](const StageMemory& stage) {
    return stage.weights + stage.gradients + stage.optimizer + stage.activation > 0;
  });
}

bool HasLayers(const Arguments& arguments) {
  return std::any_of(std::begin(kSources), std::end(kSources),
                     [&](const char* source) { return arguments.Has(source); });
}

std::optional<Stages> ModelledStagesOf(const Arguments& arguments, const Program& program) {
  const std::optional<ModelledRun> run = ModelledRunOf(arguments);
  if (!run) return std::nullopt;
  const Schedule& schedule = program.schedule();
  const RunLayout layout = LaidOver(*run, schedule.ranks, schedule.stages, schedule.microbatches);
  Bytes memory = run->machine.accelerator.memory;
  if (arguments.Has("device-memory")) memory = arguments.Size("device-memory");
  Stages stages;
  stages.kind = SplitKindOf(arguments);
  NetworkSplit split =
      stages.kind == SplitKind::kAuto
          ? BestNetworkSplit(run->model, run->machine, layout, run->efficiency, program, memory)
          : AssessNetworkSplit(run->model, run->machine, layout, run->efficiency, program);
  stages.counts = std::move(split.blocks);
  stages.partition = std::move(split.partition);
  return stages;
}

Stages SplitByFlags(const Arguments& arguments, std::vector<NetworkPart> parts,
                    const Program& program, Bandwidth bandwidth, Bytes memory) {
  Stages stages;
  stages.kind = SplitKindOf(arguments);
  const int count = program.schedule().stages;
  const PartitionSetting setting =
      PartitionSettingOf(program, bandwidth, stages.kind == SplitKind::kAuto ? memory : 0);
  if (stages.kind == SplitKind::kAuto) {
    stages.partition = BestPartition(parts, setting);
  } else {
    const std::vector<int> counts =
        stages.kind == SplitKind::kEven ? EvenCounts(parts, count) : CountsByHand(arguments, count);
    stages.partition = AssessPartition(parts, PartitionByCounts(parts, counts), setting);
  }
  stages.counts = LayerCounts(parts, stages.partition.stages);
  stages.costs = StageCosts(parts, stages.partition.stages);
  stages.memory = StageSizes(parts, stages.partition.stages);
  stages.messages = CutMessages(parts, stages.partition.stages);
  stages.parts = std::move(parts);
  return stages;
}

std::optional<Stages> StagesOf(const Arguments& arguments, const Program& program) {
  if (!HasLayers(arguments)) return std::nullopt;
  const bool profile = arguments.Has("profile");
  if (profile && arguments.Has("layer-times")) {
    throw Error(fmt::format("{}: the layers of --profile have their own",
                            arguments.PlaceOf("layer-times")));
  }
  const char* source = profile ? "profile" : "layer-times";
  RefuseOtherTimes(arguments, source);
  const std::string file = arguments.Text(source);
  std::vector<NetworkPart> parts = profile ? ReadPipeDreamProfile(file) : ReadLayerTimes(file);
  const Bandwidth bandwidth =
      arguments.Has("p2p-bandwidth") ? arguments.Rate("p2p-bandwidth") : Bandwidth{};
  try {
    const Bytes memory = arguments.Has("device-memory") ? arguments.Size("device-memory") : 0;
    Stages stages = SplitByFlags(arguments, std::move(parts), program, bandwidth, memory);
    stages.costs.source = file;
    return stages;
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", file, error.what()));
  }
}

std::string SplitText(const Stages& stages) {
  const std::vector<Nanoseconds>& times = stages.partition.rank_time;
  const auto slowest = std::max_element(times.begin(), times.end());
  std::string text =
      fmt::format("split {}: {} layers; rank {} is the slowest with {} for a micro-batch",
                  KindName(stages.kind), fmt::join(stages.counts, ","), slowest - times.begin(),
                  FormatDuration(*slowest));
  if (stages.partition.bottleneck > *slowest) {
    text += fmt::format(", but messages over a link take {}",
                        FormatDuration(stages.partition.bottleneck));
  }
  if (!stages.partition.proven) text += " (the search was cut short: there may be a better one)";
  return text + '\n';
}

nlohmann::ordered_json SplitJson(const Stages& stages) {
  nlohmann::ordered_json json = {{"by", KindName(stages.kind)},
                                 {"layers", stages.counts},
                                 {"bottleneck_ns", stages.partition.bottleneck.count()}};
  auto& times = json["rank_time_ns"] = nlohmann::ordered_json::array();
  for (const Nanoseconds time : stages.partition.rank_time) times.push_back(time.count());
  if (!stages.partition.proven) json["proven"] = false;
  return json;
}

}  // namespace pipelag
