// Training on the threads of one process: a rank per thread; by default CPU compute and local
// transport.
#pragma once

#include <functional>

#include "models/schedule/program.h"
#include "runtime/backends.h"
#include "runtime/executor.h"
#include "runtime/training.h"

namespace pipelag {

/// Stands between a rank's worker and its backend: where devices are imitated and faults injected.
/// What it returns outlives the run.
using Interposer = std::function<RankBackend(int rank, RankBackend inner, RunControl& control)>;

/// Makes the backends of a run; all that is given outlives them.
using OpenBackends =
    std::function<std::unique_ptr<Backends>(const Program& program, const TrainingOptions& options,
                                            const Corpus& corpus, RunControl& control)>;

/// Clipping needs a norm group in the schedule. Throws Error if the options do not fit the program
/// or if a rank fails.
TrainingResult TrainOnThreads(const Program& program, const TrainingOptions& options,
                              const Corpus& corpus, const Interposer& interpose = {});
TrainingResult TrainOnThreads(const Program& program, const TrainingOptions& options,
                              const Corpus& corpus, const OpenBackends& open,
                              const Interposer& interpose);

}  // namespace pipelag
