// What each rank of a run came to, brought to rank 0 and put together there.
#pragma once

#include <optional>
#include <vector>

#include "models/schedule/schedule.h"
#include "runtime/breaking.h"
#include "runtime/processes/process_link.h"
#include "runtime/processes/train.h"
#include "runtime/worker.h"

namespace pipelag {

struct RankRun {
  WorkerResult result;
  std::vector<double> losses;               ///< Σ token losses by micro-batch, where it has them
  std::vector<std::vector<float>> weights;  ///< of each stage of its plan
  std::optional<Breaking> breaking = {};    ///< what it saw break first
};

/// Both use `tag` and wait. `stages`: as many as the peer's plan has.
void SendToFirst(ProcessLink& link, int tag, const RankRun& run);
RankRun TakeFrom(ProcessLink& link, int peer, int tag, size_t stages);

/// Puts the spans of all ranks on rank 0's clock.
void AlignSpans(const std::vector<ClockOffset>& clocks, std::vector<RankRun>& runs);

/// Those of all micro-batches, each from where the last stage of its stream is.
std::vector<double> GatherLosses(const Schedule& schedule, const std::vector<RankRun>& runs);

}  // namespace pipelag
