// From flags to a simulated run.
#include "tools/simulation.h"

#include "models/held_memory.h"
#include "tools/memory_flags.h"
#include "tools/model_flags.h"
#include "tools/update_flags.h"

namespace pipelag {
namespace {

/// A picture of more actions than this says nothing, and its spans fill the memory.
constexpr int64_t kMostDrawn = 1'000'000;
/// Why ranks idle takes longer to find out than to simulate: of longer runs only where spans are
/// wanted anyway.
constexpr int64_t kMostExplained = 200'000;

/// What the flags say things take and how large they are, for one program.
struct Inputs {
  std::optional<ModelledStep> modelled;
  ActionTimes times;
  std::optional<MemorySizes> sizes;
};

/// Of layers with known times.
Inputs InputsOfStages(const Arguments& arguments, const Program& program, Simulated& simulated) {
  simulated.costs = simulated.stages->costs;
  OverrideLinks(arguments, program.schedule().stages, simulated.costs);
  Inputs inputs{std::nullopt, ActionTimes(program, simulated.costs, ReductionOf(arguments)),
                std::nullopt};
  std::vector<LinkTime> links =
      LinksOfMessages(program, simulated.stages->messages, simulated.costs);
  if (!links.empty()) inputs.times.ReplaceLinks(std::move(links), program);
  if (simulated.stages->sizes_known()) {
    inputs.sizes = simulated.stages->memory;
    if (arguments.Has("device-memory")) inputs.sizes->device = arguments.Size("device-memory");
  }
  return inputs;
}

Inputs InputsOf(const Arguments& arguments, const Program& program, Simulated& simulated) {
  const Schedule& schedule = program.schedule();
  if (HasLayers(arguments)) {
    simulated.stages = StagesOf(arguments, program);
    return InputsOfStages(arguments, program, simulated);
  }
  if (arguments.Has("split") && arguments.PlaceOf("split").starts_with("--") &&
      !arguments.Has("machine") && !arguments.Has("optimizer")) {
    throw Error("--split: needs the times of layers, by --machine, --profile or --layer-times");
  }
  simulated.stages = ModelledStagesOf(arguments, program);
  const std::vector<int> split = simulated.stages ? simulated.stages->counts : std::vector<int>{};
  std::optional<ModelledStep> modelled = ModelledStepOf(arguments, schedule, split);
  simulated.costs = CostsOf(arguments, schedule.stages, modelled ? &modelled->costs() : nullptr);
  if (modelled) {
    simulated.optimizer = modelled->layout.optimizer;
  } else if (const auto updates = UpdateTimesOf(arguments, program)) {
    simulated.costs.update = *updates;
    simulated.optimizer = arguments.Text("optimizer");
  }
  std::vector<Nanoseconds> reduction = ReductionOf(arguments);
  if (modelled && reduction.empty()) reduction = ReductionsOf(schedule, modelled->estimate);
  std::optional<MemorySizes> sizes =
      MemorySizesOf(arguments, schedule.stages, modelled ? &modelled->estimate.memory : nullptr);
  return {std::move(modelled), ActionTimes(program, simulated.costs, reduction), std::move(sizes)};
}

/// What limits the run and what would help, where that can be told.
void FindReasons(const NamedSchedule& named, const Program& program, const ActionTimes& met,
                 int receive_slots, bool as_given, Simulated& simulated) {
  for (const int lane : simulated.steady.critical_lanes) {
    simulated.critical_links.push_back(program.lanes()[static_cast<size_t>(lane)]);
    const LinkTime& takes = met.OfMessage(lane);
    simulated.messages_take_time |= takes.occupancy + takes.latency > 0;
  }
  const Schedule& schedule = program.schedule();
  if (!schedule.groups.empty() && !simulated.steady.critical_ranks.empty()) {
    simulated.reductions = CostOfReductions(program, met, receive_slots);
  }
  if (named.file.empty() && simulated.steady.crosses_links() && as_given) {
    simulated.warm_up = WarmUpThatHides(schedule, GivenCostsOf(simulated.costs));
  }
}

}  // namespace

std::vector<Flag> SimulationFlags() {
  return Concatenate(
      {ScheduleFlags(),
       {StepsFlag(),
        {"tied-exchange", "TIME",
         "of --tied: how long first and last stage, on different ranks, exchange gradients "
         "(default: 0; with --machine by the model of costs)"},
        {"receive-slots", "COUNT", "messages a lane may hold for its receiver (default: enough)"}},
       ModelFlags(),
       CostFlags(),
       PartitionFlags(),
       UpdateFlags(),
       MemoryFlags(),
       ConditionFlags()});
}

Simulated SimulateOne(const NamedSchedule& named, const Arguments& arguments,
                      const Extras& extras) {
  const Program program = Lower(named, arguments);
  const Schedule& schedule = program.schedule();
  Simulated simulated;
  auto [modelled, times, sizes] = InputsOf(arguments, program, simulated);
  TimeTied(arguments, program, modelled ? &modelled->run : nullptr,
           modelled ? &modelled->estimate : nullptr, times);
  ApplySpread(arguments, program, times);
  simulated.drawn = extras.picture && program.actions() <= kMostDrawn;
  const Conditions conditions = ConditionsOf(arguments, schedule);
  const bool explained = extras.reasons && program.actions() <= kMostExplained;
  SimulationOptions options{
      .receive_slots = static_cast<int>(arguments.CountOr("receive-slots", 0)),
      .spans = extras.spans || simulated.drawn || explained ||
               (sizes && (extras.reasons || arguments.Has("receive-slots"))),
      .network = conditions.network,
      .cores = conditions.cores,
      .noise = conditions.noise};
  if (!extras.reasons) options.most_actions_for_critical_cycle = 0;
  Simulation simulation = Simulate(program, times, options);
  simulated.outlook = OutlookOf(program, times, options, conditions);
  simulated.result = {
      std::move(simulation.trace), std::move(simulation.metrics), {}, schedule.stages};
  for (int stage = 0; stage < schedule.placed_stages(); ++stage) {
    simulated.result.versions.push_back(program.versions(stage));
  }
  simulated.result.replicas = static_cast<int>(arguments.CountOr("replicas", 1));
  simulated.result.ranks = schedule.ranks;
  simulated.result.microbatches = schedule.microbatches;
  simulated.steady = std::move(simulation.steady);
  simulated.exact = simulation.exact;
  simulated.result.mean = !simulation.exact;
  if (extras.reasons) {
    FindReasons(named, program, simulation.met ? *simulation.met : times, options.receive_slots,
                !simulation.met, simulated);
  }
  RunResult& result = simulated.result;
  if (options.spans && extras.reasons) Explain(result);
  if (sizes && !options.spans) {
    for (const Bytes peak : HeldMemory(program).PeaksOf(program, *sizes)) {
      result.memory.emplace_back().peak = peak;
    }
  } else if (sizes) {
    result.memory = MemoryOverTime(result.trace, *sizes,
                                   StandingMemoryOf(program, *sizes, options.receive_slots));
  }
  if (sizes) simulated.beyond_memory = BeyondMemory(result.memory, sizes->device);
  if (modelled) {
    simulated.throughput = ThroughputOf(result.metrics.step_time, modelled->estimate,
                                        modelled->layout, modelled->run.machine);
    simulated.gpus = modelled->layout.gpus();
    result.trace.tokens_per_step = modelled->layout.sequences() * modelled->layout.sharding.tokens;
  }
  return simulated;
}

}  // namespace pipelag
