// Training with a process per rank: what stands around the worker of one of them. The first error
// ends all of them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "models/schedule/program.h"
#include "runtime/cpu/threads.h"
#include "runtime/processes/notes.h"
#include "runtime/processes/wire.h"
#include "runtime/training.h"

namespace pipelag {

/// How far a process's clock is ahead of rank 0's, from the exchange of messages with the shortest
/// way there and back: true to half of that.
struct ClockOffset {
  Nanoseconds ahead{0};
  Nanoseconds uncertainty{0};
};

struct ProcessesResult {
  TrainingResult training;
  std::vector<ClockOffset> clocks;  ///< by rank, at the start of the run
};

/// Makes the backend of this process's rank over its link; tags from `free_tag` on are nobody's.
/// All that is given outlives it. What it makes no transport for gets messages of the link's.
using OpenProcessBackends =
    std::function<std::unique_ptr<Backends>(const Program& program, const TrainingOptions& options,
                                            const Corpus& corpus, ProcessLink& link, int free_tag)>;

/// Runs rank `wire.rank()` of the program, as TrainOnThreads would all of them. Returns what all
/// came to on rank 0, nothing elsewhere. Throws Error if this rank fails or has to wait too long,
/// StoppedByPeer if another one does; after either the wire is of no more use. A process that is
/// told to end (termination.h) meanwhile says what it was at. When the loss diverges the ranks
/// go through the rest of the program without computing, so that all messages meet.
std::optional<ProcessesResult> TrainOnProcesses(const Program& program,
                                                const TrainingOptions& options,
                                                const Corpus& corpus, Wire& wire,
                                                const Interposer& interpose = {});
std::optional<ProcessesResult> TrainOnProcesses(const Program& program,
                                                const TrainingOptions& options,
                                                const Corpus& corpus, Wire& wire,
                                                const OpenProcessBackends& open,
                                                const Interposer& interpose);

}  // namespace pipelag
