#include "runtime/emulated/emulate.h"

#include <fmt/format.h>

#include "models/schedule/slots.h"
#include "runtime/cpu/local_transport.h"
#include "runtime/emulated/cores.h"
#include "runtime/emulated/emulated_compute.h"
#include "runtime/emulated/emulated_links.h"
#include "runtime/executor.h"

namespace pipelag {
namespace {

/// Every time the program needs, before anything runs.
void CheckCosts(const Schedule& schedule, const Costs& costs) {
  if (costs.stages() != schedule.stages) {
    throw Error(fmt::format("the times are for {} stages, but the schedule has {}", costs.stages(),
                            schedule.stages));
  }
  for (const auto& body : schedule.body) {
    for (const Action& action : body) {
      if (action.kind == ActionKind::kAllReduce) continue;
      static_cast<void>(costs.Of(action.kind, schedule.SliceOf(action.stage)));
    }
  }
}

Trace EmulateIn(EmulatedCompute::Way way, const Program& program, const Costs& costs,
                Nanoseconds reduction, Nanoseconds deadline, const Interposer& interpose) {
  const Schedule& schedule = program.schedule();
  CheckCosts(schedule, costs);
  RunControl control(deadline);
  LocalHub hub(program, control);
  EmulatedLinks links(program.lanes().size(), schedule.groups.size(),
                      {.message = TransferTime(costs.activation_bytes, costs.p2p_bandwidth),
                       .latency = costs.p2p_latency,
                       .reduction = reduction});
  const std::vector<int> slots = NeverDelayingSlots(program);
  std::vector<RankPlan> plans;
  std::vector<std::unique_ptr<EmulatedCompute>> computes;
  std::vector<std::unique_ptr<Transport>> transports;
  std::vector<RankBackend> backends;
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    plans.push_back(PlanRank(program, rank, slots));
    computes.push_back(std::make_unique<EmulatedCompute>(plans.back(), costs, way, control));
    transports.push_back(hub.End(rank));
    transports.push_back(links.End(*transports.back()));
    const RankBackend inner{computes.back().get(), transports.back().get()};
    backends.push_back(interpose ? interpose(rank, inner, control) : inner);
  }
  const WorkerOptions worker{.message_bytes = static_cast<size_t>(costs.activation_bytes),
                             .watch = {}};
  std::vector<double> losses(static_cast<size_t>(program.total_microbatches()));
  std::vector<WorkerResult> results;
  RunOnThreads(program, plans, worker, backends, control, losses, results);
  return CollectTrace(program, results);
}

}  // namespace

Trace Emulate(const Program& program, const Costs& costs, Nanoseconds reduction,
              Nanoseconds deadline, const Interposer& interpose) {
  return EmulateIn(EmulatedCompute::Way::kAsleep, program, costs, reduction, deadline, interpose);
}

Trace EmulateOnCores(const Program& program, const Costs& costs, int64_t cores,
                     Nanoseconds reduction, Nanoseconds deadline, const Interposer& interpose) {
  const OnCores held(cores);  // threads inherit it
  return EmulateIn(EmulatedCompute::Way::kBusy, program, costs, reduction, deadline, interpose);
}

}  // namespace pipelag
