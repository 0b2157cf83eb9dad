#include "runtime/executor.h"

#include <thread>

namespace pipelag {

std::vector<WorkerResult> RunOnThreads(const Program& program, const std::vector<RankPlan>& plans,
                                       const WorkerOptions& options,
                                       const std::vector<RankBackend>& backends,
                                       RunControl& control, std::vector<double>& losses) {
  std::vector<WorkerResult> results(plans.size());
  const auto run = [&](size_t rank) {
    try {
      results[rank] = Worker(program, plans[rank], options, *backends[rank].compute,
                             *backends[rank].transport, losses)
                          .Run();
    } catch (const RunStopped&) {
      // Another rank's error is already kept.
    } catch (...) {
      control.Stop(std::current_exception());
    }
  };
  {
    std::vector<std::jthread> threads;
    threads.reserve(plans.size());
    for (size_t rank = 0; rank < plans.size(); ++rank) {
      try {
        threads.emplace_back(run, rank);
      } catch (...) {
        control.Stop(std::current_exception());
        break;
      }
    }
  }
  control.RethrowError();
  return results;
}

Trace CollectTrace(const Program& program, std::vector<WorkerResult>& results) {
  const Schedule& schedule = program.schedule();
  Trace trace;
  trace.schedule = schedule.name;
  trace.ranks = schedule.ranks;
  trace.stages = schedule.placed_stages();
  trace.microbatches = schedule.microbatches;
  trace.steps = program.steps();
  trace.stage_rank = schedule.placement;
  for (WorkerResult& result : results) {
    trace.spans.insert(trace.spans.end(), result.spans.begin(), result.spans.end());
    result.spans = {};
  }
  Nanoseconds earliest = Nanoseconds::max();
  for (const Span& span : trace.spans) earliest = std::min(earliest, span.start);
  for (Span& span : trace.spans) {
    span.start -= earliest;
    span.end -= earliest;
  }
  SortSpans(trace);
  return trace;
}

}  // namespace pipelag
