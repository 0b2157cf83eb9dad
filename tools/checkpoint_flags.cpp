// The flags that say where a run begins and what it leaves behind: checkpoints, resuming, weights
// in and out. Must not know how it is run.
#include "tools/checkpoint_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "runtime/checkpoint/facts.h"
#include "runtime/checkpoint/folder.h"
#include "runtime/checkpoint/weight_file.h"

namespace pipelag {
namespace {

/// How late the oldest reader of each stage is.
std::vector<int> OldestReaders(const SerialPlan& plan) {
  std::vector<int> delays;
  for (const SerialStage& stage : plan.stages) {
    int most = 0;
    for (const int delay : stage.forward_delay) most = std::max(most, delay);
    for (const int delay : stage.backward_delay) most = std::max(most, delay);
    delays.push_back(most);
  }
  return delays;
}

/// What a file of llm.c's cannot hold is not lost for that.
void Export(const std::string& file, const NetworkShape& shape,
            const std::vector<StageWeights>& weights) {
  try {
    ExportWeights(file, shape, weights);
  } catch (const Error& error) {
    if (std::filesystem::path(file).extension() != ".bin") throw;
    const std::string instead = file + ".safetensors";
    ExportWeights(instead, shape, weights);
    throw Error(fmt::format("{}; the weights are in {}", error.what(), instead));
  }
}

}  // namespace

std::vector<Flag> CheckpointFlags() {
  return {
      {"checkpoint", "FOLDER", "leave checkpoints there, one folder per step, the last at the end"},
      {"checkpoint-every", "COUNT", "steps from one to the next (default: at the end only)"},
      {"keep-last", "COUNT",
       "remove older ones, but not the last that later steps have shown to be good (default: keep "
       "all)"},
      {"resume", "FOLDER",
       "go on from a checkpoint, the folder's latest or the one of a step, to the last bit as if "
       "never stopped; ranks and schedule may differ if the delay does not"},
      {"init", "FILE",
       "begin with the weights of llm.c's GPT-2 checkpoint (.bin) or of a .safetensors file with "
       "Hugging Face's names"},
      {"export", "FILE", "write the final weights, as .safetensors or, to a .bin, in llm.c's form"},
  };
}

CheckpointPlan CheckpointsOf(const Arguments& arguments) {
  CheckpointPlan plan;
  for (const char* needing : {"checkpoint-every", "keep-last"}) {
    if (arguments.Has(needing) && !arguments.Has("checkpoint")) {
      throw Error(fmt::format("{}: needs --checkpoint", arguments.PlaceOf(needing)));
    }
  }
  if (arguments.Has("resume") && arguments.Has("init")) {
    throw Error(fmt::format("{}: a checkpoint to resume has weights of its own",
                            arguments.PlaceOf("init")));
  }
  if (arguments.Has("resume")) {
    plan.resumed = std::make_shared<const Checkpoint>(arguments.Text("resume"));
  }
  plan.init = arguments.TextOr("init", "");
  plan.exported = arguments.Output("export");
  if (arguments.Has("checkpoint")) {
    plan.settings = {.folder = arguments.Text("checkpoint"),
                     .every = arguments.CountOr("checkpoint-every", 0),
                     .keep_last = arguments.CountOr("keep-last", 0)};
  }
  return plan;
}

void TakeShapeOfInit(const Arguments& arguments, NetworkShape& shape) {
  if (!arguments.Has("init")) return;
  const std::string file = arguments.Text("init");
  const std::optional<LlmcHeader> header = ReadLlmcHeader(file);
  if (!header) return;
  const auto take = [&](const char* flag, int there, int& here) {
    if (arguments.Has(flag) && here != there) {
      throw Error(
          fmt::format("{}: {} is not the {} of {}", arguments.PlaceOf(flag), here, there, file));
    }
    here = there;
  };
  take("layers", header->shape.layers, shape.layers);
  take("hidden", header->shape.hidden, shape.hidden);
  take("heads", header->shape.heads, shape.heads);
  take("vocabulary", header->shape.vocabulary, shape.vocabulary);
  if (!arguments.Has("sequence")) shape.sequence = std::min(shape.sequence, header->shape.sequence);
}

std::unique_ptr<CheckpointWriter> Attach(const CheckpointPlan& plan, const SerialPlan& serial,
                                         const Corpus& corpus, int ranks, int64_t last_step,
                                         TrainingOptions& options, std::vector<std::string>& notes,
                                         bool prepares) {
  const std::string facts = RunFacts(options, serial, corpus).dump();
  const std::string summation = SummationOf(options, serial).dump();
  if (plan.resumed) {
    plan.resumed->CheckFacts(facts, serial.replicas);
    if (!plan.resumed->AddsLike(summation)) {
      notes.push_back(
          fmt::format("{} is of a run that added gradients in another order; what follows differs "
                      "from that run left alone by rounding",
                      plan.resumed->folder().string()));
    }
    options.start = plan.resumed;
  } else if (!plan.init.empty()) {
    options.start = OpenWeights(plan.init, options.shape);
  }
  if (!plan.exported.empty()) {
    options.on_final_weights = [file = plan.exported,
                                shape = options.shape](const std::vector<StageWeights>& weights) {
      Export(file, shape, weights);
    };
  }
  if (!plan.settings) return nullptr;
  if (prepares) PrepareFolder(plan.settings->folder, plan.first_step());
  auto writer = std::make_unique<CheckpointWriter>(
      *plan.settings,
      CheckpointFacts{facts, summation, int64_t{options.microbatch_size} * serial.microbatches,
                      serial.name, ranks, serial.replicas},
      OldestReaders(serial), plan.first_step(), last_step);
  options.checkpoints = writer.get();
  return writer;
}

}  // namespace pipelag
