// One run of training as a user sees it: where it begins, what it shows and logs meanwhile, and
// what it leaves behind. Must not know which runs there are.
#include "tools/train_once.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/checkpoint/folder.h"
#include "runtime/cpu/threads.h"

namespace pipelag {
namespace {

nlohmann::ordered_json LogHeader(const SerialPlan& plan, const TrainingOptions& options,
                                 const RunExtent& extent, int ranks) {
  return {{"schedule", plan.name},
          {"ranks", ranks},
          {"replicas", plan.replicas},
          {"stages", plan.stages.size()},
          {"microbatches", plan.microbatches / plan.replicas},
          {"optimizer", options.optimizer.name},
          {"correction", options.correction.name},
          {"first_step", extent.first_step},
          {"last_step", extent.last_step},
          {"tokens_per_step", extent.tokens_per_step}};
}

/// Analysed, an action takes about 1 KiB.
constexpr int64_t kMostTraced = int64_t{1} << 18;

/// Steps of which the trace is kept.
int64_t TracedSteps(const SerialPlan& plan) {
  const auto stages = static_cast<int64_t>(plan.stages.size());
  return std::clamp(kMostTraced / (stages * (2 * plan.microbatches + 1)), int64_t{1}, plan.steps);
}

/// What there is to go back to.
std::string GoodCheckpoint(const CheckpointWriter* writer, int64_t diverged_at) {
  if (writer == nullptr) return "";
  const std::filesystem::path& folder = writer->settings().folder;
  const int64_t step = LastGood(folder, diverged_at - 1, writer->delay());
  if (step < 0) return "; there is no checkpoint yet that later steps have shown to be good";
  return fmt::format("; the last checkpoint that later steps have shown to be good is {}",
                     (folder / StepFolderName(step)).string());
}

std::optional<ProcessesResult> OnProcesses(const Program& program, const TrainingOptions& options,
                                           const Corpus& corpus, Wire& wire, const Gpus& gpus) {
  if (!gpus.backend) return TrainOnProcesses(program, options, corpus, wire);
  return TrainOnProcesses(program, ValidatedOnDevice(options, *gpus.backend, gpus.run, corpus),
                          corpus, wire, OnDeviceOfProcess(*gpus.backend, gpus.run, gpus.local_rank),
                          {});
}

}  // namespace

TrainingResult TrainInProcess(const Program& program, const TrainingOptions& options,
                              const Corpus& corpus, const Gpus& gpus) {
  if (!gpus.backend) return TrainOnThreads(program, options, corpus);
  return TrainOnThreads(program, ValidatedOnDevice(options, *gpus.backend, gpus.run, corpus),
                        corpus, OnDevices(*gpus.backend, gpus.run), {});
}

Length LengthOf(const Arguments& arguments, const CheckpointPlan& plan, int64_t otherwise) {
  const Length length{plan.first_step(), arguments.CountOr("steps", otherwise)};
  if (length.steps() < 1) {
    throw Error(fmt::format("{}: {} is at step {}, so --steps {} leaves nothing to do",
                            arguments.PlaceOf("resume"), plan.resumed->folder().string(),
                            length.first, length.last));
  }
  return length;
}

std::optional<TrainingResult> TrainOnce(const Program* program, const SerialPlan& plan,
                                        TrainingOptions options, const Corpus& corpus,
                                        const Outside& outside, Processes& processes,
                                        const Gpus& gpus) {
  const int64_t first = outside.checkpoints.first_step();
  const RunExtent extent{first, first + plan.steps, TokensPerStep(options, plan.microbatches)};
  const int ranks = program != nullptr ? program->schedule().ranks_per_replica() : 1;
  std::vector<std::string> notes;
  // The others' first checkpoint comes long after rank 0 has let them begin.
  const bool speaks = processes.wire == nullptr || processes.wire->rank() == 0;
  const auto writer =
      Attach(outside.checkpoints, plan, corpus, ranks, extent.last_step, options, notes, speaks);
  options.traced_steps = TracedSteps(plan);
  if (options.traced_steps < plan.steps) {
    notes.push_back(
        fmt::format("{}: the trace, and what is told from it, is of the first {} of {} steps",
                    plan.name, options.traced_steps, plan.steps));
  }
  if (speaks) {
    for (const std::string& note : notes) fmt::print(stderr, "pipelag: {}\n", note);
  }
  if (outside.log) outside.log->Begin(LogHeader(plan, options, extent, ranks), extent);
  std::optional<TrainingResult> result;
  {
    ProgressLine progress(plan.name, extent);
    options.on_step = [&](const StepReport& report) {
      progress.Show(report);
      if (outside.log) outside.log->Add(report);
    };
    if (program == nullptr) {
      result = TrainSerially(plan, options, corpus);
    } else if (processes.wire == nullptr) {
      result = TrainInProcess(*program, options, corpus, gpus);
    } else if (auto of_all = OnProcesses(*program, options, corpus, *processes.wire, gpus)) {
      result = std::move(of_all->training);
      processes.clocks = std::move(of_all->clocks);
    }
  }
  if (result && result->diverged) {
    fmt::print(stderr, "pipelag: {} diverged at step {}: {}{}\n", plan.name, *result->diverged,
               result->diverged_where, GoodCheckpoint(writer.get(), *result->diverged));
  }
  return result;
}

}  // namespace pipelag
