// One run of training as a user sees it: where it begins, what it shows and logs meanwhile, and
// what it leaves behind. Must not know which runs there are.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "models/schedule/program.h"
#include "runtime/device/train.h"
#include "runtime/processes/train.h"
#include "runtime/serial.h"
#include "tools/arguments.h"
#include "tools/checkpoint_flags.h"
#include "tools/run_progress.h"

namespace pipelag {

/// What a run gets from outside and leaves there.
struct Outside {
  CheckpointPlan checkpoints;
  std::unique_ptr<StepLog> log;  ///< null: none
};

/// Steps of the whole training, and those of them done before.
struct Length {
  int64_t first = 0;
  int64_t last = 0;

  int64_t steps() const { return last - first; }
};

/// By --steps, `otherwise` if not given. Throws Error if nothing is left to do.
Length LengthOf(const Arguments& arguments, const CheckpointPlan& plan, int64_t otherwise);

/// Ranks that are processes: this one's wire, and what their clocks came to, on rank 0.
struct Processes {
  Wire* wire = nullptr;
  std::vector<ClockOffset> clocks;
};

/// GPUs to train on.
struct Gpus {
  std::unique_ptr<DeviceBackend> backend;  ///< null: trained on the processor
  DeviceRun run;
  int local_rank = 0;  ///< of ranks that are processes
};

/// Trains under `program` on threads, or with their ranks on GPUs.
TrainingResult TrainInProcess(const Program& program, const TrainingOptions& options,
                              const Corpus& corpus, const Gpus& gpus);

/// Trains for the steps of `plan`: under `program`, on threads or as one of `processes` if there
/// are any, or serially if it is null. What to say about it goes to stderr. Nothing on processes
/// other than rank 0.
std::optional<TrainingResult> TrainOnce(const Program* program, const SerialPlan& plan,
                                        TrainingOptions options, const Corpus& corpus,
                                        const Outside& outside, Processes& processes,
                                        const Gpus& gpus);

}  // namespace pipelag
