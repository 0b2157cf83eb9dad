// Runs the ranks of a program, one thread each, over any backend; the first error ends them all.
#pragma once

#include <vector>

#include "runtime/run_control.h"
#include "runtime/worker.h"

namespace pipelag {

/// One rank's halves of a backend; borrowed.
struct RankBackend {
  Compute* compute = nullptr;
  Transport* transport = nullptr;
};

/// Results by rank. If a rank throws, every other rank's waits end, all threads are joined and the
/// first error is rethrown; `results` then holds the spans of what was done until there.
void RunOnThreads(const Program& program, const std::vector<RankPlan>& plans,
                  const WorkerOptions& options, const std::vector<RankBackend>& backends,
                  RunControl& control, std::vector<double>& losses,
                  std::vector<WorkerResult>& results);

/// Of ranks on one clock: a receive began, as far as anybody can tell, when its sender let go of
/// the message, however long it had been posted.
void AlignReceives(std::vector<WorkerResult>& results);

/// The trace of a run: the spans of all steps that every stage has done, time zero at the earliest
/// start.
Trace CollectTrace(const Program& program, std::vector<WorkerResult>& results);

}  // namespace pipelag
