// What the ranks of a training run came to, put together wherever they ran.
#pragma once

#include <optional>
#include <vector>

#include "models/schedule/program.h"
#include "runtime/breaking.h"
#include "runtime/data/corpus.h"
#include "runtime/network/digest.h"
#include "runtime/rank_plan.h"
#include "runtime/training.h"
#include "runtime/worker.h"

namespace pipelag {

/// Throws Error if the options do not fit the program.
void CheckFits(const Program& program, const TrainingOptions& options);

/// What every worker of such a run is told; `watch` is left to the caller.
WorkerOptions WorkerOptionsOf(const TrainingOptions& options);

/// `plans` and `results` by rank; `placed`: final weights of every placed stage; `losses`: Σ token
/// losses of every micro-batch of the run.
TrainingResult Outcome(const Program& program, const TrainingOptions& options, const Corpus& corpus,
                       const std::vector<RankPlan>& plans, std::vector<WorkerResult>& results,
                       std::vector<StageWeights> placed, const std::vector<double>& losses);

/// Of a run that diverged. `not_finite`: by slice of the network, as for WhereDiverged, where
/// nobody saw it break.
TrainingResult DivergedOutcome(const Program& program, const TrainingOptions& options,
                               std::vector<WorkerResult>& results, std::vector<double> losses,
                               const Diverged& diverged,
                               const std::vector<std::optional<Breaking>>& seen,
                               const std::vector<std::string>& not_finite);

}  // namespace pipelag
