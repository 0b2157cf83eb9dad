// `pipelag run`: trains for real, one schedule or a series of them in turn, and holds what was
// measured against what the simulator predicts.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "models/file.h"
#include "models/update_time.h"
#include "runtime/cpu/outcome.h"
#include "runtime/device/optimizers.h"
#include "runtime/processes/loss_messages.h"
#include "runtime/processes/train.h"
#include "runtime/serial.h"
#include "runtime/termination.h"
#include "tools/emulate.h"
#include "tools/failure.h"
#include "tools/flags.h"
#include "tools/prediction.h"
#include "tools/replica_flags.h"
#include "tools/result.h"
#include "tools/train_once.h"
#include "tools/trained_series.h"
#include "tools/training_flags.h"

namespace pipelag {
namespace {

constexpr int64_t kDefaultSteps = 20;
constexpr int64_t kStepsAlone = 10;  ///< of stages measured alone, warm-up not counted
constexpr std::string_view kBackends[] = {"threads", "serial", "mpi", "cuda"};
constexpr std::string_view kTransports[] = {"local", "nccl"};
constexpr std::string_view kOnOff[] = {"on", "off"};
/// How long ranks that are processes wait for each other to appear.
constexpr std::chrono::seconds kPatience{60};
constexpr std::string_view kComputes[] = {"real", "emulated", "busy"};

/// How a series is trained.
struct Way {
  SerialPlan plan;  ///< what its serial reference does
  TrainingOptions options;
};

/// The series to run and, in `ways`, how. What does not go together is refused before anything
/// begins.
std::vector<Series> SeriesOf(const Arguments& arguments, bool serial, const Length& length,
                             std::vector<Way>& ways) {
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
    const int replicas = ReplicasOf(arguments);
    // First the options: a network has only so many stages.
    TrainingOptions options = TrainingOf(arguments, stages, length.last);
    ways.push_back({PlanOfDelays(delays, stages, static_cast<int>(arguments.Count("microbatches")),
                                 length.steps(), replicas),
                    std::move(options)});
    CheckPlan(ways.back().plan, ways.back().options);
    all.push_back({"serial", std::nullopt, replicas});
    return all;
  }
  for (const NamedSchedule& named : SchedulesOf(arguments)) {
    Program program = LowerWithReplicas(named, arguments).WithSteps(length.steps());
    const Schedule& schedule = program.schedule();
    InFileOf(named, [&] {
      ways.push_back({PlanOf(program), TrainingOf(arguments, schedule.stages, length.last)});
      CheckFits(program, ways.back().options);
    });
    all.push_back({schedule.name, std::move(program), schedule.replicas});
  }
  return all;
}

/// Of processes one knows what every step came to.
bool LogsHere(const Series& series, const Wire* wire) {
  return wire == nullptr || wire->rank() == WatchingRank(series.program->schedule());
}

/// What only GPUs have a use for.
std::vector<Flag> GpuFlags() {
  return {
      {"transport", "local|nccl",
       "of --backend cuda: copies within the process, or NCCL (default: local; nccl for ranks "
       "that are processes)"},
      {"cuda-graphs", "on|off",
       "of --transport local: passes of stages are captured when they are first made and replayed "
       "from then on (default: off)"}};
}

Flag CoresFlag() {
  return {"cores", "COUNT",
          "of --compute busy: all ranks run on so many of the cores that this process may use "
          "(default: all of them)"};
}

/// By the flags; `launched`: a launcher has started this process.
Gpus GpusOf(const Arguments& arguments, bool launched) {
  Gpus gpus;
  const bool nccl =
      arguments.Has("transport") ? arguments.Choice("transport", kTransports) == "nccl" : launched;
  if (launched && !nccl) {
    throw Error(fmt::format("{}: ranks that are processes reach each other by nccl only",
                            arguments.PlaceOf("transport")));
  }
  gpus.run.transport = nccl ? DeviceTransport::kNccl : DeviceTransport::kLocal;
  if (arguments.Has("precision") && arguments.Text("precision") == "fp32") {
    gpus.run.precision = StagePrecision::kFloat32;
  }
  gpus.run.graphs = arguments.Has("cuda-graphs") && arguments.Choice("cuda-graphs", kOnOff) == "on";
  if (launched) gpus.local_rank = LocalRank().value_or(0);
  gpus.backend = LoadCuda(nccl);
  return gpus;
}

int RunReal(const Arguments& arguments, std::string_view backend, Wire* wire, const Gpus& gpus) {
  const bool json = WantsJson(arguments);
  const bool serial = backend == "serial";
  const std::string trace = arguments.Output("trace");
  const std::string loss = arguments.Output("loss");
  const std::filesystem::path folder = arguments.TextOr("traces", "");
  Outside outside{CheckpointsOf(arguments), nullptr};
  const Length length = LengthOf(arguments, outside.checkpoints, kDefaultSteps);
  std::vector<Way> ways;
  std::vector<Series> all = SeriesOf(arguments, serial, length, ways);
  if (!trace.empty() && all.size() > 1) {
    throw Error("--trace holds one schedule; several go to a folder with --traces");
  }
  std::optional<Prediction> prediction;
  if (arguments.Has("predict-from")) {
    if (serial) {
      throw Error(fmt::format("{}: needs ranks that run side by side, not --backend serial",
                              arguments.PlaceOf("predict-from")));
    }
    prediction.emplace(arguments, all, wire != nullptr);
  }
  const TrainingOptions& options = ways.front().options;
  if (gpus.backend) CheckDeviceOptimizer(options.optimizer, options.correction);
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
  CheckLeavesSteps(arguments, length.steps());
  // In turn rather than one after the other: what slows the machine for a while slows them all.
  for (int64_t i = 0; i < repetitions; ++i) {
    for (size_t k = 0; k < all.size(); ++k) {
      Processes processes{wire, {}};
      auto result = TrainOnce(serial ? nullptr : &*all[k].program, ways[k].plan, ways[k].options,
                              corpus, outside, processes, gpus);
      if (!result) continue;
      if (!serial && !gpus.backend) {
        all[k].memory = PlanMemory(*all[k].program, ways[k].options, length.first, wire != nullptr);
      }
      all[k].runs.push_back(std::move(*result));
      all[k].clocks = std::move(processes.clocks);
    }
    if (!prediction) continue;
    for (const Prediction::Form& form : prediction->alone()) {
      prediction->MeasureAlone(form, std::min(length.steps(), warm_up + kStepsAlone),
                               TrainingOf(arguments, form.first, length.last), corpus, gpus);
    }
  }
  if (wire != nullptr && wire->rank() != 0) return 0;
  for (Series& series : all) {
    std::vector<const Trace*> traces;
    for (const TrainingResult& run : series.runs) traces.push_back(&run.trace);
    series.summary = Summarise(traces, warm_up);
  }
  for (const Series& series : all) {
    if (prediction && series.typical().diverged) {
      fmt::print(stderr, "pipelag: {} diverged at step {}, so nothing is predicted\n", series.name,
                 *series.typical().diverged);
      prediction.reset();
    }
  }
  std::optional<Costs> costs;
  if (prediction) costs = prediction->Predict(all, warm_up);
  if (!trace.empty()) WriteFile(trace, MeasuredTrace(all.front()));
  if (!loss.empty()) WriteLosses(loss, all);
  if (!folder.empty()) WriteFolder(folder, all, costs ? &*costs : nullptr);
  if (!json) {
    fmt::print("{}", SeriesText(all, options, corpus));
    return 0;
  }
  std::vector<nlohmann::ordered_json> results;
  for (const Series& series : all) {
    results.push_back(SeriesJson(series, corpus));
    results.back()["parameters"] = NetworkParameters(options.shape);
    results.back()["precision"] = options.precision == ProductPrecision::kBf16 ? "bf16" : "fp32";
  }
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

int Run(const Arguments& given) {
  const Arguments arguments = given.Without("cluster");  // a job's is for simulations
  const std::string compute =
      arguments.Has("compute") ? arguments.Choice("compute", kComputes) : std::string(kComputes[0]);
  if (compute != "busy") RefuseGiven(arguments, {CoresFlag()}, "only --compute busy keeps to them");
  if (compute != "real") return RunEmulated(arguments, compute);
  // Real stages take the time they take; only a generator may want to know it beforehand.
  RefuseUselessTimes(arguments, "times are given for --compute emulated and busy only");
  if (arguments.Has("reduction")) {
    throw Error(fmt::format("{}: real replicas take the time they take, give --replicas",
                            arguments.PlaceOf("reduction")));
  }
  const std::string backend =
      arguments.Has("backend") ? arguments.Choice("backend", kBackends) : std::string(kBackends[0]);
  const bool cuda = backend == "cuda";
  if (!cuda) RefuseGiven(arguments, GpuFlags(), "only --backend cuda has a use for it");
  const Launched launched = cuda || backend == "mpi" ? HowLaunched() : Launched{.host = ""};
  const bool processes = backend == "mpi" || launched.by != Launched::By::kNobody;
  const Gpus gpus = cuda ? GpusOf(arguments, processes) : Gpus();
  if (!processes) return RunReal(arguments, backend, nullptr, gpus);
  if (launched.by == Launched::By::kVariables) CheckWorldSize(arguments, launched.size);
  const auto patience = std::chrono::ceil<std::chrono::seconds>(
      arguments.Has("deadline") ? arguments.Duration("deadline") : Nanoseconds{kPatience});
  // A run under way says more.
  const OnTermination told(
      [&](const std::string& signal) {
        const bool known = launched.by == Launched::By::kVariables;
        EndProcess(std::make_exception_ptr(Error(fmt::format(
            "{}told to end ({})", known ? fmt::format("rank {}: ", launched.rank) : "", signal))));
      },
      OnTermination::When::kOtherwise);
  const std::unique_ptr<Wire> wire = OpenWire(launched, patience);
  try {
    return RunReal(arguments, backend, wire.get(), gpus);
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
          "--backend cuda: the ranks share the GPUs of this machine; started as a process per "
          "rank,\n"
          "like mpi, each takes the GPU of its LOCAL_RANK and they talk by NCCL.\n\n"
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
          "are no hindrance. --steps defaults as in 'simulate'. With --compute busy stages keep a "
          "core\n"
          "busy instead, for as long, so that ranks that share --cores slow each other, and the "
          "simulation\n"
          "is that of 'simulate --cores'.\n\n"
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
            {"backend", "threads|serial|mpi|cuda",
             "a thread per rank, the serial reference, a process per rank, or GPUs"},
            {"compute", "real|emulated|busy",
             "train, or only take the times given, asleep or each rank on a core (default: real)"},
            CoresFlag(),
            {"delay", "COUNT[,COUNT...]",
             "of --backend serial: gradient delay of all stages or of each"}},
           GpuFlags(),
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
            {"loss", "FILE", "write the loss of every step of this run as CSV"},
            {"log", "FILE",
             "write a line of JSON per step as it is done, behind what is there with --resume"},
            FormatFlag()}}),
      .run = Run,
  };
}

}  // namespace pipelag
