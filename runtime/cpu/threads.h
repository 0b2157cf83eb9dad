// Training on the threads of one process: a rank per thread, CPU compute, local transport.
#pragma once

#include <functional>

#include "models/schedule/program.h"
#include "runtime/executor.h"
#include "runtime/training.h"

namespace pipelag {

/// Stands between a rank's worker and its backend: where devices are imitated and faults injected.
/// What it returns outlives the run.
using Interposer = std::function<RankBackend(int rank, RankBackend inner, RunControl& control)>;

/// Clipping needs a norm group in the schedule. Throws Error if the options do not fit the program
/// or if a rank fails.
TrainingResult TrainOnThreads(const Program& program, const TrainingOptions& options,
                              const Corpus& corpus, const Interposer& interpose = {});

}  // namespace pipelag
