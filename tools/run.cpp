// `pipelag run`: trains for real, one schedule or a series of them in turn, and holds what was
// measured against what the simulator predicts.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "models/file.h"
#include "runtime/processes/loss_messages.h"
#include "runtime/processes/train.h"
#include "runtime/runnable.h"
#include "runtime/serial.h"
#include "sim/simulator.h"
#include "tools/emulate.h"
#include "tools/flags.h"
#include "tools/replica_flags.h"
#include "tools/result.h"
#include "tools/train_once.h"
#include "tools/trained_series.h"
#include "tools/training_flags.h"
#include "traces/calibrate.h"
#include "traces/chrome.h"

namespace pipelag {
namespace {

constexpr int64_t kDefaultSteps = 20;
constexpr std::string_view kBackends[] = {"threads", "serial", "mpi"};
/// How long ranks that are processes wait for each other to appear.
constexpr std::chrono::seconds kPatience{60};
constexpr std::string_view kComputes[] = {"real", "emulated"};

/// The series to run and, in `plans`, what its serial reference would be.
std::vector<Series> SeriesOf(const Arguments& arguments, bool serial, int64_t steps,
                             std::vector<SerialPlan>& plans) {
  std::vector<Series> all;
  if (arguments.Has("delay")) {
    if (!serial) {
      throw Error(
          fmt::format("{}: delays by hand need --backend serial", arguments.PlaceOf("delay")));
    }
    if (arguments.Has("schedule")) {
      throw Error(fmt::format("{}: --schedule brings its own delays", arguments.PlaceOf("delay")));
    }
    const std::vector<int> delays = arguments.SmallNumbers("delay");
    const auto stages =
        static_cast<int>(arguments.CountOr("ranks", static_cast<int64_t>(delays.size())));
    plans.push_back(PlanOfDelays(delays, stages, static_cast<int>(arguments.Count("microbatches")),
                                 steps, ReplicasOf(arguments)));
    all.push_back({"serial", std::nullopt, {}, {}, {}, {}});
    return all;
  }
  for (const NamedSchedule& named : SchedulesOf(arguments)) {
    Program program = WithReplicas(Lower(named, arguments), arguments).WithSteps(steps);
    plans.push_back(PlanOf(program));
    all.push_back({program.schedule().name, std::move(program), {}, {}, {}, {}});
  }
  return all;
}

bool AnyOf(const Schedule& schedule, ActionKind kind) {
  return std::any_of(schedule.body.begin(), schedule.body.end(), [&](const auto& body) {
    return std::any_of(body.begin(), body.end(), [&](const Action& a) { return a.kind == kind; });
  });
}

/// Times measured on `source` must be all that `other` needs.
void CheckPredictable(const std::string& place, const Schedule& source, const Schedule& other) {
  if (source.stages != other.stages) {
    throw Error(fmt::format("{}: {} has {} stages, but {} has {}", place, source.name,
                            source.stages, other.name, other.stages));
  }
  if (AnyOf(other, ActionKind::kBackwardInput) && !AnyOf(source, ActionKind::kBackwardInput)) {
    throw Error(
        fmt::format("{}: {} does not split its backwards, so the times of I and W that {} "
                    "needs are not known",
                    place, source.name, other.name));
  }
}

/// The schedule of --predict-from among those run.
size_t SourceOf(const Arguments& arguments, const std::vector<Series>& all, bool serial) {
  const std::string name = arguments.Text("predict-from");
  const std::string place = arguments.PlaceOf("predict-from");
  if (serial) {
    throw Error(fmt::format("{}: needs ranks that run side by side, not --backend serial", place));
  }
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].name != name) continue;
    for (const Series& other : all) {
      CheckPredictable(place, all[i].program->schedule(), other.program->schedule());
    }
    return i;
  }
  throw Error(fmt::format("{}: '{}' is none of the schedules run", place, name));
}

/// By group of `other`: what its reduction of gradients took, in the same part of the network, in
/// a run of `source`. Whoever reduces nothing there takes no time here.
std::vector<Nanoseconds> ReductionsFor(const Schedule& other, const Schedule& source,
                                       const Trace& trace, int64_t warm_up) {
  const std::vector<Nanoseconds> measured = ReductionTimes(trace, source.groups.size(), warm_up);
  std::vector<Nanoseconds> of_slice(static_cast<size_t>(source.stages));
  const auto slice = [](const Schedule& schedule, const CollectiveGroup& group) {
    return static_cast<size_t>(schedule.SliceOf(group.stages.front()));
  };
  for (size_t g = 0; g < measured.size(); ++g) {
    if (!MovesGradients(source.groups[g])) continue;
    of_slice[slice(source, source.groups[g])] = measured[g];
  }
  std::vector<Nanoseconds> times;
  for (const CollectiveGroup& group : other.groups) {
    times.push_back(MovesGradients(group) ? of_slice[slice(other, group)] : Nanoseconds{0});
  }
  return times;
}

/// Simulates every schedule on costs calibrated on one of them.
Costs Predict(std::vector<Series>& all, size_t source, int64_t warm_up) {
  // On the repetition that is shown: what slowed another one down is none of its business.
  const Trace& trace = all[source].typical().trace;
  const Schedule& measured = all[source].program->schedule();
  const Costs costs = Calibrate({OfSlices(trace, measured.stages)}, {.warm_up = warm_up});
  for (Series& series : all) {
    const Program executed = Unpaired(*series.program);
    const ActionTimes times(executed, costs,
                            ReductionsFor(executed.schedule(), measured, trace, warm_up));
    series.simulated = Simulate(executed, times, {.spans = true});
    series.simulated->trace.tokens_per_step = series.typical().trace.tokens_per_step;
  }
  return costs;
}

/// Real stages take the time they take; only a generator may want to know it beforehand.
void RefuseUselessTimes(const Arguments& arguments) {
  const std::vector<std::string> names =
      arguments.Has("schedule") ? arguments.Texts("schedule") : std::vector<std::string>();
  const bool wanted =
      std::any_of(Generators().begin(), Generators().end(), [&](const Generator& generator) {
        return (generator.uses & Generator::kCosts) != 0 &&
               std::find(names.begin(), names.end(), generator.name) != names.end();
      });
  if (!wanted) RefuseGiven(arguments, CostFlags(), "times are given for --compute emulated only");
}

/// Of processes one knows what every step came to.
bool LogsHere(const Series& series, const Wire* wire) {
  return wire == nullptr || wire->rank() == WatchingRank(series.program->schedule());
}

int RunReal(const Arguments& arguments, std::string_view backend, Wire* wire) {
  const bool json = WantsJson(arguments);
  const bool serial = backend == "serial";
  const std::string trace = arguments.Output("trace");
  const std::string loss = arguments.Output("loss");
  const std::filesystem::path folder = arguments.TextOr("traces", "");
  Outside outside{CheckpointsOf(arguments), nullptr};
  const Length length = LengthOf(arguments, outside.checkpoints, kDefaultSteps);
  std::vector<SerialPlan> plans;
  std::vector<Series> all = SeriesOf(arguments, serial, length.steps(), plans);
  if (!trace.empty() && all.size() > 1) {
    throw Error("--trace holds one schedule; several go to a folder with --traces");
  }
  std::optional<size_t> predict_from;
  if (arguments.Has("predict-from")) predict_from = SourceOf(arguments, all, serial);
  const TrainingOptions options =
      TrainingOf(arguments, static_cast<int>(plans.front().stages.size()), length.last);
  const Corpus corpus = CorpusOf(arguments, options);
  if (!folder.empty()) {
    std::filesystem::create_directories(folder);
    CheckWritable(folder / "side-by-side.json");
  }
  const int64_t repetitions = arguments.CountOr("repeat", 1);
  if (outside.checkpoints.any() && (all.size() > 1 || repetitions > 1)) {
    throw Error(
        "checkpoints and files of weights are of one run: name one --schedule, no --repeat");
  }
  if (arguments.Has("log") && LogsHere(all.front(), wire)) {
    outside.log = std::make_unique<StepLog>(arguments.Output("log"), arguments.Has("resume"));
  }
  const int64_t warm_up = WarmUpOf(arguments);
  if (arguments.Has("warm-up") && warm_up >= length.steps()) {
    throw Error(fmt::format("{}: {} of {} steps leave nothing to measure",
                            arguments.PlaceOf("warm-up"), warm_up, length.steps()));
  }
  // In turn rather than one after the other: what slows the machine for a while slows them all.
  for (int64_t i = 0; i < repetitions; ++i) {
    for (size_t k = 0; k < all.size(); ++k) {
      TrainingOptions own = options;
      if (plans[k].stages.size() != options.split.size()) {
        own = TrainingOf(arguments, static_cast<int>(plans[k].stages.size()), length.last);
      }
      Processes processes{wire, {}};
      auto result =
          TrainOnce(serial ? nullptr : &*all[k].program, plans[k], own, corpus, outside, processes);
      if (!result) continue;
      all[k].runs.push_back(std::move(*result));
      all[k].clocks = std::move(processes.clocks);
    }
  }
  if (wire != nullptr && wire->rank() != 0) return 0;
  for (Series& series : all) {
    std::vector<const Trace*> traces;
    for (const TrainingResult& run : series.runs) traces.push_back(&run.trace);
    series.summary = Summarise(traces, warm_up);
  }
  for (const Series& series : all) {
    if (predict_from && series.typical().diverged) {
      fmt::print(stderr, "pipelag: {} diverged at step {}, so nothing is predicted\n", series.name,
                 *series.typical().diverged);
      predict_from.reset();
    }
  }
  std::optional<Costs> costs;
  if (predict_from) costs = Predict(all, *predict_from, warm_up);
  if (!trace.empty()) WriteFile(trace, ToChrome(all.front().typical().trace));
  if (!loss.empty()) WriteLosses(loss, all);
  if (!folder.empty()) WriteFolder(folder, all, costs ? &*costs : nullptr);
  if (!json) {
    fmt::print("{}", SeriesText(all, options, corpus));
    return 0;
  }
  std::vector<nlohmann::ordered_json> results;
  for (const Series& series : all) results.push_back(SeriesJson(series, corpus));
  fmt::print("{}", JsonText(std::move(results)));
  return 0;
}

/// Before anybody waits for processes that nobody has started.
void CheckWorldSize(const Arguments& arguments, int size) {
  if (!arguments.Has("ranks")) return;
  const int64_t ranks = arguments.Count("ranks");
  const int replicas = ReplicasOf(arguments);
  if (ranks * replicas == size) return;
  throw Error(
      replicas == 1
          ? fmt::format("WORLD_SIZE is {}, but --ranks {}: there is a process for each rank", size,
                        ranks)
          : fmt::format("WORLD_SIZE is {}, but --ranks {} times --replicas {} is {}: there "
                        "is a process for each rank of each replica",
                        size, ranks, replicas, ranks * replicas));
}

int Run(const Arguments& arguments) {
  if (arguments.Has("compute") && arguments.Choice("compute", kComputes) == "emulated") {
    return RunEmulated(arguments);
  }
  RefuseUselessTimes(arguments);
  if (arguments.Has("reduction")) {
    throw Error(fmt::format("{}: real replicas take the time they take, give --replicas",
                            arguments.PlaceOf("reduction")));
  }
  const std::string backend =
      arguments.Has("backend") ? arguments.Choice("backend", kBackends) : std::string(kBackends[0]);
  if (backend != "mpi") return RunReal(arguments, backend, nullptr);
  const Launched launched = HowLaunched();
  if (launched.by == Launched::By::kVariables) CheckWorldSize(arguments, launched.size);
  const auto patience = std::chrono::ceil<std::chrono::seconds>(
      arguments.Has("deadline") ? arguments.Duration("deadline") : Nanoseconds{kPatience});
  const std::unique_ptr<Wire> wire = OpenWire(launched, patience);
  try {
    return RunReal(arguments, backend, wire.get());
  } catch (const StoppedByPeer&) {
    wire->Abandon();
    return 2;  // the rank that failed says why
  } catch (...) {
    wire->Abandon();
    throw;
  }
}

}  // namespace

Subcommand RunCommand() {
  return {
      .name = "run",
      .operands = "[JOB]",
      .summary = "trains a small GPT for real under a schedule: step time, delay, loss, weights",
      .details =
          "Several schedules run in turn, --repeat times over; what is shown is the repetition "
          "with\n"
          "the median step time. --predict-from calibrates the simulator on one of them and "
          "predicts\n"
          "them all. --backend serial is the reference in one thread, with the delays of "
          "--schedule\n"
          "or those of --delay. Every schedule that 'pipelag list' names runs, and any .csv whose\n"
          "copies of a stage, if it has two directions, add up their gradients.\n\n"
          "--backend mpi: start as many processes as ranks with mpirun or srun, on one machine or\n"
          "many, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT for each, as torchrun does.\n"
          "Rank 0 prints and writes the files.\n\n"
          "--replicas trains several copies of the pipeline on one batch: each has --microbatches "
          "of\n"
          "it and --ranks of its own, and their gradients are added before every update, in the "
          "order\n"
          "of the replicas. With --backend mpi that is --ranks times --replicas processes; rank r "
          "of\n"
          "replica q is process q times --ranks plus r.\n\n"
          "--compute emulated trains nothing: every stage sleeps for its time (--forward ... "
          "--costs),\n"
          "messages are real, and the run is held against its simulation. Many more ranks than "
          "cores\n"
          "are no hindrance. --steps defaults as in 'simulate'.\n\n"
          "--checkpoint leaves what --resume goes on from, to the last bit as if the run had never "
          "been\nstopped: on any number of ranks, under any schedule whose gradients are as "
          "late.\n\n"
          "Example: pipelag run --schedule gpipe,1f1b,2bw --ranks 2 --microbatches 8 --steps 40\n"
          "         --repeat 3 --predict-from 1f1b --traces out\n"
          "         pipelag run --schedule 2bw --ranks 2 --microbatches 8 --steps 400\n"
          "         --checkpoint kept --checkpoint-every 50 --keep-last 2 --log run.jsonl\n"
          "         pipelag run --compute emulated --schedule 1f1b,zb-h1 --ranks 64 --microbatches "
          "128\n"
          "         --forward 10ms --backward-input 10ms --backward-weight 10ms",
      .most_operands = 1,
      .reads_job = true,
      .flags = Concatenate(
          {ScheduleFlags(),
           {ReplicasFlag(),
            {"steps", "COUNT", fmt::format("updates (default: {})", kDefaultSteps)},
            {"backend", "threads|serial|mpi",
             "a thread per rank, the serial reference, or a process per rank"},
            {"compute", "real|emulated", "train, or only take the times given (default: real)"},
            {"delay", "COUNT[,COUNT...]",
             "of --backend serial: gradient delay of all stages or of each"}},
           TrainingFlags(),
           CheckpointFlags(),
           CostFlags(),
           {{"repeat", "COUNT", "run the series this often (default: 1)"},
            {"predict-from", "SCHEDULE", "calibrate on this schedule's traces and predict all"},
            WarmUpFlag(),
            {"trace", "FILE", "write the run's Chrome trace"},
            {"traces", "FOLDER",
             "write the measured traces of all, with --predict-from the simulated ones and the "
             "costs too"},
            {"loss", "FILE", "write the loss of every step as CSV"},
            {"log", "FILE",
             "write a line of JSON per step as it is done, behind what is there with --resume"},
            FormatFlag()}}),
      .run = Run,
  };
}

}  // namespace pipelag
