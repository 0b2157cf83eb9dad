#include "tools/model_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "models/architecture/config.h"
#include "tools/flags.h"
#include "tools/partition_flags.h"
#include "tools/shape_flags.h"
#include "tools/table.h"

namespace pipelag {
namespace {

int CountOf(const Arguments& arguments, const char* flag, int otherwise) {
  constexpr int64_t kMost = 1'000'000;
  const int64_t count = arguments.CountOr(flag, otherwise);
  if (count > kMost) {
    throw Error(fmt::format("{}: {} is more than {}", arguments.PlaceOf(flag), count, kMost));
  }
  return static_cast<int>(count);
}

/// The error of a reader, spoken of by the flag.
template <class Reader>
auto Read(const Arguments& arguments, const char* flag, Reader read) {
  const std::string text = arguments.Text(flag);
  try {
    return read(text);
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", arguments.PlaceOf(flag), error.what()));
  }
}

Transformer ModelOf(const Arguments& arguments) {
  if (!arguments.Has("model")) return GptOf(arguments);
  std::vector<Flag> shape = GptFlags();
  std::erase_if(shape, [](const Flag& flag) { return flag.name == "layers"; });
  RefuseGiven(arguments, shape, "--model says what the network is");
  Transformer model = Read(arguments, "model", ReadTransformer);
  if (arguments.Has("layers")) {
    const int layers = CountOf(arguments, "layers", 1);
    if (layers > model.layers()) {
      throw Error(fmt::format("{}: {} has {} blocks only", arguments.PlaceOf("layers"), model.name,
                              model.layers()));
    }
    model.blocks.resize(static_cast<size_t>(layers));
  }
  return model;
}

/// Those of the network's shape that stand in no other group.
std::vector<Flag> OwnShapeFlags() {
  std::vector<Flag> flags;
  for (const Flag& flag : Concatenate({GptFlags(), ShardingFlags()})) {
    constexpr std::string_view kOfUpdates[] = {"layers", "hidden", "heads", "vocabulary",
                                               "sequence"};
    if (std::find(std::begin(kOfUpdates), std::end(kOfUpdates), flag.name) ==
        std::end(kOfUpdates)) {
      flags.push_back(flag);
    }
  }
  return flags;
}

int ZeroStage(const Arguments& arguments) {
  constexpr std::string_view kStages[] = {"0", "1", "2", "3"};
  return arguments.Has("zero") ? arguments.Choice("zero", kStages)[0] - '0' : 0;
}

}  // namespace

std::vector<Flag> ModelFlags() {
  std::vector<Flag> flags = {
      {"machine", "NAME|FILE",
       "takes all times from the model of costs of this machine; other times override them"},
      {"model", "NAME|FILE",
       "known network or its config.json, of which --layers takes the first blocks (default: a GPT "
       "by --layers, --hidden, --heads, --vocabulary)"},
      {"nodes", "COUNT", "of the machine (default: as many as the run takes)"},
      {"data", "COUNT", "data-parallel copies of the pipeline (default: 1)"},
      {"zero", "0|1|2|3", "what the copies shard of the optimizer's states (default: 0: nothing)"},
      {"overlap-reduction", "", "reduce gradients block by block beside the backward",
       FlagValue::kNone},
      {"overlap-tensor", "", "run collectives of tensor parallelism beside the products",
       FlagValue::kNone},
      {"fused-accumulation", "",
       "products add their gradients to those of other micro-batches themselves", FlagValue::kNone},
      {"blocking-messages", "", "a stage that sends waits until that is done", FlagValue::kNone},
      {"blocking-launches", "", "the host waits for every kernel (CUDA_LAUNCH_BLOCKING=1)",
       FlagValue::kNone},
      {"efficiency", "FILE", "how much of its peaks the machine gives (JSON), as validate writes"},
  };
  return Concatenate({std::move(flags), OwnShapeFlags()});
}

std::optional<ModelledRun> ModelledRunOf(const Arguments& arguments) {
  if (!arguments.Has("machine")) {
    if (!arguments.Has("model") || !arguments.PlaceOf("model").starts_with("--")) {
      return std::nullopt;
    }
    throw Error("--model: needs --machine");
  }
  RefuseGiven(arguments, {{"device-compute", "", ""}, {"device-bandwidth", "", ""}},
              "--machine says what the device is");
  ModelledRun run;
  run.machine = Read(arguments, "machine", ReadMachine);
  run.model = ModelOf(arguments);
  if (arguments.Has("efficiency")) run.efficiency = ReadEfficiency(arguments.Text("efficiency"));
  RunLayout& layout = run.layout;
  layout.sharding = ShardingOf(arguments, run.model);
  if (arguments.Has("precision")) {
    layout.precision = Read(arguments, "precision", ParsePrecision);
  }
  layout.data = CountOf(arguments, "data", 1);
  layout.shard_states = ZeroStage(arguments);
  layout.overlap_reduction = arguments.Has("overlap-reduction");
  layout.fused_accumulation = arguments.Has("fused-accumulation");
  layout.blocking_messages = arguments.Has("blocking-messages");
  layout.blocking_launches = arguments.Has("blocking-launches");
  layout.overlap_tensor = arguments.Has("overlap-tensor");
  layout.optimizer = arguments.TextOr("optimizer", "adamw");
  if (SplitKindOf(arguments) == SplitKind::kByHand) layout.split = arguments.SmallNumbers("split");
  run.nodes = CountOf(arguments, "nodes", 1);
  if (!arguments.Has("nodes")) run.nodes = 0;
  return run;
}

RunLayout LaidOver(const ModelledRun& run, int ranks, int stages, int microbatches) {
  RunLayout layout = run.layout;
  layout.pipeline = ranks;
  layout.chunks = stages / ranks;
  layout.microbatches = microbatches;
  const int64_t gpus = int64_t{1} * run.nodes * run.machine.gpus_per_node;
  if (run.nodes == 0) return layout;
  CheckLayoutSize(layout);
  if (layout.gpus() > gpus) {
    throw Error(fmt::format("the run takes {}, but {} of {} {} {}", Counted(layout.gpus(), "GPU"),
                            Counted(run.nodes, "node"), run.machine.name,
                            run.nodes == 1 ? "has" : "have", gpus));
  }
  return layout;
}

Estimate EstimateOf(const ModelledRun& run, int ranks, int stages, int microbatches) {
  return EstimateRun(run.model, run.machine, LaidOver(run, ranks, stages, microbatches),
                     run.efficiency);
}

std::optional<ModelledStep> ModelledStepOf(const Arguments& arguments, const Schedule& schedule,
                                           const std::vector<int>& split) {
  std::optional<ModelledRun> run = ModelledRunOf(arguments);
  if (!run) return std::nullopt;
  if (!split.empty()) run->layout.split = split;
  ModelledStep step;
  step.layout = LaidOver(*run, schedule.ranks, schedule.stages, schedule.microbatches);
  step.estimate = EstimateRun(run->model, run->machine, step.layout, run->efficiency);
  step.estimate.costs.source =
      fmt::format("the model of costs of {}: {}", run->machine.name, run->machine.source);
  step.run = *std::move(run);
  AddReductionsToUpdates(schedule, step.estimate);
  return step;
}

void TimeTied(const Arguments& arguments, const Program& program, const ModelledRun* run,
              const Estimate* estimate, ActionTimes& times) {
  if (!arguments.Has("tied")) {
    if (!arguments.Has("tied-exchange")) return;
    throw Error(fmt::format("{}: needs --tied", arguments.PlaceOf("tied-exchange")));
  }
  if (run != nullptr && !run->model.tied) {
    throw Error(
        fmt::format("{}: {} has a head of its own", arguments.PlaceOf("tied"), run->model.name));
  }
  Nanoseconds exchange = estimate != nullptr ? estimate->tied_exchange : Nanoseconds{0};
  if (arguments.Has("tied-exchange")) exchange = arguments.Duration("tied-exchange");
  const Schedule& schedule = program.schedule();
  std::vector<int64_t> groups;
  for (size_t g = 0; g < schedule.groups.size(); ++g) {
    const CollectiveGroup& group = schedule.groups[g];
    groups.push_back(times.OfReduction(static_cast<int>(g)));
    if (group.purpose != CollectiveGroup::Purpose::kShared) continue;
    const auto rank_of = [&](int stage) { return schedule.placement[static_cast<size_t>(stage)]; };
    const bool apart = rank_of(group.stages.front()) != rank_of(group.stages.back());
    groups.back() = apart ? exchange.count() : 0;
  }
  times.ReplaceReductions(std::move(groups), program);
}

void AddThroughput(const Throughput& run, int64_t gpus, nlohmann::ordered_json& json) {
  json["gpus"] = gpus;
  json["tokens_per_s_per_gpu"] = run.tokens_per_s_per_gpu;
  json["tflops_per_gpu"] = run.tflops_per_gpu;
  json["mfu"] = run.mfu;
  json["hfu"] = run.hfu;
}

std::string NotesOn(const ModelledRun& run, int64_t gpus) {
  std::string notes = LongSequencesNote(run.model, run.layout.sharding);
  const int64_t there = int64_t{1} * run.nodes * run.machine.gpus_per_node;
  if (gpus < there) {
    notes += fmt::format("note: {} of the {} on {} of {} stand idle\n", there - gpus,
                         Counted(there, "GPU"), Counted(run.nodes, "node"), run.machine.name);
  }
  return notes;
}

namespace {

/// "15T", "2.5B".
std::string TokensText(double tokens) {
  for (const auto& [unit, letter] : {std::pair{1e12, 'T'}, {1e9, 'B'}, {1e6, 'M'}}) {
    if (tokens >= unit) return fmt::format("{:.4g}{}", tokens / unit, letter);
  }
  return fmt::format("{:.4g}", tokens);
}

}  // namespace

std::string TrainingText(const Throughput& run, int64_t gpus, double tokens) {
  const double seconds = tokens / run.tokens_per_s;
  return fmt::format("{} tokens at this speed: {:.1f} days, {:.0f} GPU hours\n", TokensText(tokens),
                     seconds / 86400, seconds / 3600 * static_cast<double>(gpus));
}

void AddTraining(const Throughput& run, int64_t gpus, double tokens, nlohmann::ordered_json& json) {
  const double seconds = tokens / run.tokens_per_s;
  json["training"] = {{"tokens", tokens},
                      {"days", seconds / 86400},
                      {"gpu_hours", seconds / 3600 * static_cast<double>(gpus)}};
}

std::string ThroughputText(const Throughput& run, int64_t gpus) {
  return fmt::format(
      "{}: {:.1f} tokens/s, {:.1f} per GPU, {:.1f} TFLOP/s per GPU; {:.1f} % of the peak, "
      "{:.1f} % with what is recomputed\n",
      Counted(gpus, "GPU"), run.tokens_per_s, run.tokens_per_s_per_gpu, run.tflops_per_gpu,
      100 * run.mfu, 100 * run.hfu);
}

}  // namespace pipelag
