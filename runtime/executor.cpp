#include "runtime/executor.h"

#include <algorithm>
#include <deque>
#include <map>
#include <thread>
#include <tuple>

namespace pipelag {

void RunOnThreads(const Program& program, const std::vector<RankPlan>& plans,
                  const WorkerOptions& options, const std::vector<RankBackend>& backends,
                  RunControl& control, std::vector<double>& losses,
                  std::vector<WorkerResult>& results) {
  results.assign(plans.size(), {});
  // They outlive all threads: whoever comes last to a collective adds up what the others hold.
  std::deque<Worker> workers;
  for (size_t rank = 0; rank < plans.size(); ++rank) {
    workers.emplace_back(program, plans[rank], options, *backends[rank].compute,
                         *backends[rank].transport, losses);
  }
  const auto run = [&](size_t rank) {
    Worker& worker = workers[rank];
    try {
      results[rank] = worker.Run();
      return;
    } catch (const RunStopped&) {
      // Another rank's error is already kept.
    } catch (...) {
      control.Stop(std::current_exception());
    }
    results[rank] = worker.Unfinished();
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
}

void AlignReceives(std::vector<WorkerResult>& results) {
  std::map<std::tuple<int, int, ActionKind, int, int64_t>, Nanoseconds> sent;
  for (const WorkerResult& result : results) {
    for (const Span& span : result.spans) {
      const bool forward = span.kind == ActionKind::kSendForward;
      if (!forward && span.kind != ActionKind::kSendBackward) continue;
      sent[{span.rank, span.peer,
            forward ? ActionKind::kReceiveForward : ActionKind::kReceiveBackward,
            forward ? span.stage + 1 : span.stage - 1, span.microbatch}] = span.start;
    }
  }
  for (WorkerResult& result : results) {
    for (Span& span : result.spans) {
      const auto found = sent.find({span.peer, span.rank, span.kind, span.stage, span.microbatch});
      if (found != sent.end()) span.start = std::clamp(found->second, span.start, span.end);
    }
  }
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
  trace.replicas = schedule.replicas;
  for (WorkerResult& result : results) {
    trace.spans.insert(trace.spans.end(), result.spans.begin(), result.spans.end());
    result.spans = {};
  }
  std::vector<int64_t> updates(static_cast<size_t>(trace.stages));
  for (const Span& span : trace.spans) {
    if (span.kind == ActionKind::kUpdate) ++updates[static_cast<size_t>(span.stage)];
  }
  trace.steps = *std::min_element(updates.begin(), updates.end());
  std::erase_if(trace.spans, [&](const Span& span) { return StepOf(span, trace) >= trace.steps; });
  Nanoseconds earliest = Nanoseconds::max();
  for (const Span& span : trace.spans) earliest = std::min(earliest, span.start);
  for (Span& span : trace.spans) {
    span.start -= earliest;
    span.end -= earliest;
    span.wait = std::min(span.wait, span.start);  // what was waited before the run began is no wait
  }
  SortSpans(trace);
  return trace;
}

}  // namespace pipelag
