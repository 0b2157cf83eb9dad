// The flags that say which network is trained on which machine and how it is laid over it, and what
// a step of that costs by the model of costs. Must not know how the run is simulated.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "models/cost/estimate.h"
#include "models/schedule/program.h"
#include "sim/estimated_run.h"
#include "sim/times.h"
#include "tools/arguments.h"
#include "tools/subcommand.h"

namespace pipelag {

/// --model … --efficiency; shapes and optimizer are those of UpdateFlags.
std::vector<Flag> ModelFlags();

/// A network on a machine, of which `layout` leaves the pipeline to the schedule.
struct ModelledRun {
  Transformer model;
  Machine machine;
  RunLayout layout;
  Efficiency efficiency;
  int nodes = 0;  ///< 0: as many as it takes
};

/// Nothing without --machine. Throws Error naming the flag; also for one on the command line that
/// would say again what model or machine are. (A job file may have it for other subcommands.)
std::optional<ModelledRun> ModelledRunOf(const Arguments& arguments);

/// With so many pipeline ranks, stages and micro-batches. Throws Error as EstimateRun, and if the
/// nodes of --nodes have too few GPUs.
RunLayout LaidOver(const ModelledRun& run, int ranks, int stages, int microbatches);

/// Of the run laid out so. Throws Error as LaidOver and EstimateRun.
Estimate EstimateOf(const ModelledRun& run, int ranks, int stages, int microbatches);

/// A schedule's step of a modelled run.
struct ModelledStep {
  ModelledRun run;
  RunLayout layout;
  Estimate estimate;

  const Costs& costs() const { return estimate.costs; }
};
/// Nothing without --machine. A schedule whose order is fixed has no reductions: its updates take
/// that time too. `split`: blocks per stage, in place of what --split says; empty: as it says.
std::optional<ModelledStep> ModelledStepOf(const Arguments& arguments, const Schedule& schedule,
                                           const std::vector<int>& split = {});

/// What the exchange of a tied embedding's gradients takes, by --tied-exchange or the estimate,
/// into `times`; holders on one rank exchange by pointer. `run` and `estimate` are null without
/// --machine. Throws Error naming the flag for a time without --tied, and for a model whose head is
/// its own.
void TimeTied(const Arguments& arguments, const Program& program, const ModelledRun* run,
              const Estimate* estimate, ActionTimes& times);

/// Adds "gpus", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu", "hfu".
void AddThroughput(const Throughput& run, int64_t gpus, nlohmann::ordered_json& json);
/// Lines for stderr: what of the machine the run leaves idle, and longer sequences than its model
/// is made for.
std::string NotesOn(const ModelledRun& run, int64_t gpus);

/// How long so many tokens take at the simulated speed; the second adds "training".
std::string TrainingText(const Throughput& run, int64_t gpus, double tokens);
void AddTraining(const Throughput& run, int64_t gpus, double tokens, nlohmann::ordered_json& json);

std::string ThroughputText(const Throughput& run, int64_t gpus);

}  // namespace pipelag
