// Runs on devices: every schedule on GPUs that are late ends with the weights of its serial
// reference, however the ranks reach each other; a wait that is left out shows; failures end runs.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "models/schedule/generators.h"
#include "models/schedule/replicate.h"
#include "models/schedule/slots.h"
#include "runtime/data/grammar.h"
#include "runtime/device/device_hub.h"
#include "runtime/device/train.h"
#include "runtime/rank_plan.h"
#include "runtime/serial.h"
#include "tests/reason.h"
#include "tests/runtime/every_schedule.h"
#include "tests/runtime/late_backend.h"
#include "tests/runtime/socket_pairs.h"
#include "tests/runtime/transport_around.h"

namespace pipelag {
namespace {

constexpr int64_t kSteps = 3;
constexpr int kMicrobatches = 12;  // shared evenly by 1 to 4 ranks

const Corpus& TestCorpus() {
  static const Corpus corpus = GrammarCorpus(3, 4, 4000);
  return corpus;
}

TrainingOptions Options(const Program& program, bool clipped = false) {
  TrainingOptions options;
  options.shape = {.layers = 9, .hidden = 8, .heads = 1, .sequence = 4, .vocabulary = 256};
  options.split = SplitLayers(options.shape.layers, program.schedule().stages);
  options.microbatch_size = 1;
  options.seed = 7;
  options.optimizer.learning_rate = 0.01f;
  options.learning_rate = {.peak = 0.01f, .total_updates = kSteps};
  options.validation_microbatches = 2;
  options.deadline = std::chrono::seconds(20);
  options.poison_freed = true;
  if (clipped) options.clip_norm = 0.3;
  return options;
}

Program Lower(const std::string& schedule, int ranks, bool norm = false, int64_t steps = kSteps) {
  return Program(Generate(schedule, {.ranks = ranks, .microbatches = kMicrobatches, .norm = norm}),
                 steps);
}

TrainingResult OnLateGpus(const Program& program, const TrainingOptions& options,
                          LateBackend& backend, DeviceTransport transport) {
  const DeviceRun run{StagePrecision::kFloat32, transport};
  return TrainOnThreads(program, ValidatedOnDevice(options, backend, run, TestCorpus()),
                        TestCorpus(), OnDevices(backend, run), {});
}

void ExpectSame(const TrainingResult& device, const TrainingResult& serial) {
  EXPECT_FALSE(device.diverged) << device.diverged_where;
  EXPECT_EQ(device.weights_sha256, serial.weights_sha256);
  EXPECT_EQ(device.step_losses, serial.step_losses);
  EXPECT_EQ(device.validation_loss, serial.validation_loss);
}

/// One GPU for all ranks and one for each, by copies and by NCCL.
void ExpectSameEverywhere(const Program& program, const TrainingOptions& options) {
  const TrainingResult serial = TrainSerially(PlanOf(program), options, TestCorpus());
  const int ranks = program.schedule().ranks;
  for (const DeviceTransport transport : {DeviceTransport::kLocal, DeviceTransport::kNccl}) {
    for (const int devices : ranks == 1 ? std::vector{1} : std::vector{1, ranks}) {
      SCOPED_TRACE(fmt::format("{} GPUs, {}", devices,
                               transport == DeviceTransport::kNccl ? "NCCL" : "copies"));
      LateBackend backend(devices, static_cast<uint64_t>(13 * ranks + devices), devices % 2 == 1);
      ExpectSame(OnLateGpus(program, options, backend, transport), serial);
    }
  }
}

class OnGpus : public testing::TestWithParam<std::string> {};

TEST_P(OnGpus, EqualTheSerialReferenceHoweverRanksReachEachOther) {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    if (GetParam() == "dualpipe" && ranks % 2 != 0) continue;
    if (kSanitized && ranks != (GetParam() == "dualpipe" ? 2 : 3)) continue;
    SCOPED_TRACE(ranks);
    const Program program = Lower(GetParam(), ranks);
    ExpectSameEverywhere(program, Options(program));
  }
}

TEST_P(OnGpus, ClipByTheNormOfAllRanks) {
  if (GetParam() == "zb-v" || GetParam() == "interleaved-1f1b") return;  // alike
  const Program program = Lower(GetParam(), 2, true);
  ExpectSameEverywhere(program, Options(program, true));
}

TEST_P(OnGpus, ShareATiedEmbeddingAndItsNorm) {
  for (const int ranks : {1, 2}) {
    for (const bool clipped : {false, true}) {
      if (ranks == 1 && (kSanitized || GetParam() == "dualpipe")) continue;
      SCOPED_TRACE(fmt::format("{} ranks, {}", ranks, clipped ? "clipped" : "not clipped"));
      const Program program(
          Generate(GetParam(),
                   {.ranks = ranks, .microbatches = kMicrobatches, .norm = clipped, .tied = true}),
          kSteps);
      TrainingOptions options = Options(program, clipped);
      options.shape.tied = true;
      ExpectSameEverywhere(program, options);
    }
  }
}

/// With everything that a reduce lane holds: sums over replicas, the exchange behind them, the
/// norm.
TEST_P(OnGpus, AddUpTheGradientsOfReplicas) {
  const Schedule one = Generate(
      GetParam(), {.ranks = 2, .microbatches = 4, .reduction = true, .norm = true, .tied = true});
  const Program program(Replicate(one, 2), kSteps);
  TrainingOptions options = Options(program, true);
  options.shape.tied = true;
  ExpectSameEverywhere(program, options);
}

INSTANTIATE_TEST_SUITE_P(Schedules, OnGpus,
                         testing::Values("gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-v",
                                         "2bw", "dualpipe"),
                         [](const auto& parameter) { return CaseName(parameter.param); });

TEST(GpuRun, ARankHasBegunBeforeMessagesComeOnOtherStreams) {
  const Program program = Lower("zb-v", 2);
  const std::vector<int> slots = NeverDelayingSlots(program);
  LateBackend backend(2, 4);
  const DeviceRun run{StagePrecision::kFloat32, DeviceTransport::kLocal};
  int buffers = 0;
  TrainOnThreads(program, Options(program), TestCorpus(), OnDevices(backend, run),
                 [&](int rank, RankBackend inner, RunControl&) {
                   for (const MessagePlan& planned : PlanRank(program, rank, slots).messages) {
                     for (int i = 0; i < planned.buffers; ++i, ++buffers) {
                       EXPECT_TRUE(std::isnan(*reinterpret_cast<const float*>(
                           inner.compute->MessageBuffer(planned.lane, i))));
                     }
                   }
                   return inner;
                 });
  EXPECT_GT(buffers, 4);
}

TEST(GpuRun, AnyTimingIsTheSameRun) {
  const Program program = Lower("zb-h1", 3);
  const TrainingOptions options = Options(program);
  const TrainingResult serial = TrainSerially(PlanOf(program), options, TestCorpus());
  for (uint64_t seed = 0; seed < (kSanitized ? 2 : 8); ++seed) {
    LateBackend backend(seed % 2 == 0 ? 1 : 3, seed);
    ExpectSame(OnLateGpus(program, options, backend,
                          seed % 4 < 2 ? DeviceTransport::kLocal : DeviceTransport::kNccl),
               serial);
  }
}

/// Seals all that there is from the moment at which the first rank begins until the last has ended.
class Sealed {
 public:
  Sealed(LateBackend& backend, int ranks) : nccl_(backend.nccl), running_(ranks) {
    backend.on_open = [this](LateGpu& gpu) { gpus_.push_back(&gpu); };
  }
  Interposer interposer() {
    return [this](int, RankBackend inner, RunControl&) {
      ends_.push_back(std::make_unique<End>(*this, *inner.transport));
      return RankBackend{inner.compute, ends_.back().get()};
    };
  }

 private:
  class End : public TransportAround {
   public:
    End(Sealed& sealed, Transport& inner) : TransportAround(inner), sealed_(sealed) {}
    void Open() override {
      TransportAround::Open();
      sealed_.Seal(true);
    }
    void Close() override {
      TransportAround::Close();
      if (--sealed_.running_ == 0) sealed_.Seal(false);
    }

   private:
    Sealed& sealed_;
  };

  void Seal(bool sealed) {
    nccl_.sealed = sealed;
    for (LateGpu* gpu : gpus_) gpu->sealed = sealed;
  }

  StrictNccl& nccl_;
  std::atomic<int> running_;
  std::vector<LateGpu*> gpus_;
  std::vector<std::unique_ptr<End>> ends_;
};

/// Memory, streams, marks and connections: beside a receive that waits for another rank none of
/// them is to be had.
TEST(GpuRun, TakesNothingMoreOnceARankHasBegun) {
  for (const int replicas : {1, 2}) {
    const Schedule one = Generate("1f1b", {.ranks = 3,
                                           .microbatches = kMicrobatches,
                                           .reduction = replicas > 1,
                                           .norm = true,
                                           .barrier = true,
                                           .tied = true});
    const Program program(replicas == 1 ? one : Replicate(one, replicas), kSteps);
    TrainingOptions options = Options(program, true);
    options.shape.tied = true;
    const int ranks = program.schedule().ranks;
    for (const DeviceTransport transport : {DeviceTransport::kLocal, DeviceTransport::kNccl}) {
      for (const int devices : {1, ranks}) {
        SCOPED_TRACE(fmt::format("{} replicas, {} GPUs", replicas, devices));
        LateBackend backend(devices, 21, false);
        Sealed sealed(backend, ranks);
        const DeviceRun run{StagePrecision::kFloat32, transport};
        const TrainingResult result = TrainOnThreads(program, options, TestCorpus(),
                                                     OnDevices(backend, run), sealed.interposer());
        EXPECT_FALSE(result.diverged);
      }
    }
  }
}

TEST_P(OnGpus, ReplayTheirPassesToTheLastBit) {
  const int ranks = 2;
  int before = 0;
  for (const int64_t steps : {4, 8}) {
    const Program program = Lower(GetParam(), ranks, false, steps);
    const TrainingOptions options = Options(program);
    const TrainingResult serial = TrainSerially(PlanOf(program), options, TestCorpus());
    LateBackend backend(1, 19);
    LateGpu* gpu = nullptr;
    backend.on_open = [&](LateGpu& opened) { gpu = &opened; };
    int captured = 0;
    int replayed = 0;
    TrainingOptions watched = options;
    watched.on_final_weights = [&](const std::vector<StageWeights>&) {
      captured = gpu->captured;
      replayed = gpu->replayed;
    };
    const DeviceRun run{StagePrecision::kFloat32, DeviceTransport::kLocal, true};
    ExpectSame(TrainOnThreads(program, watched, TestCorpus(), OnDevices(backend, run), {}), serial);
    int64_t passes = 0;
    for (const auto& body : program.schedule().body) {
      for (const Action& action : body) {
        passes += HasMicrobatch(action.kind) ? 1 : 0;
      }
    }
    EXPECT_EQ(replayed, passes * steps);
    // Buffers take turns, so whole steps bring the same pointers again.
    EXPECT_TRUE(before == 0 || captured == before) << before << ", then " << captured;
    EXPECT_LT(captured, passes * 4);
    before = captured;
  }
}

TEST(GpuFailure, OfGraphsOverNcclIsSaid) {
  LateBackend backend(2, 3);
  const DeviceRun run{StagePrecision::kFloat32, DeviceTransport::kNccl, true};
  EXPECT_THROW(OnDevices(backend, run), Error);
  EXPECT_THROW(OnDeviceOfProcess(backend, run, 0), Error);
}

TEST(GpuRun, OpensTheMemoryOfNeighboursOnly) {
  const Program program = Lower("1f1b", 4);
  LateBackend backend(4, 2);
  std::vector<LateGpu*> gpus;
  backend.on_open = [&](LateGpu& gpu) { gpus.push_back(&gpu); };
  std::vector<std::set<int>> opened;
  const DeviceRun run{StagePrecision::kFloat32, DeviceTransport::kLocal};
  TrainOnThreads(program, Options(program), TestCorpus(), OnDevices(backend, run),
                 [&](int rank, RankBackend inner, RunControl&) {
                   if (rank == 0) {
                     for (const LateGpu* gpu : gpus) opened.push_back(gpu->opened());
                   }
                   return inner;
                 });
  EXPECT_EQ(opened, (std::vector<std::set<int>>{{1}, {0, 2}, {1, 3}, {2}}));
}

/// Of the stream that is first told to wait, or of all others.
TEST(GpuRun, WithoutAWaitIsNotTheSameRun) {
  const Program program = Lower("1f1b", 2);
  const TrainingOptions options = Options(program);
  const TrainingResult serial = TrainSerially(PlanOf(program), options, TestCorpus());
  for (const bool of_first : {true, false}) {
    LateBackend backend(1, 5);
    std::mutex mutex;
    Stream first = nullptr;
    backend.on_open = [&](LateGpu& gpu) {
      gpu.forgets = [&](Stream stream) {
        const std::lock_guard lock(mutex);
        if (first == nullptr) first = stream;
        return (stream == first) == of_first;
      };
    };
    const DeviceRun run{StagePrecision::kFloat32, DeviceTransport::kLocal};
    std::string digest;
    try {
      digest = TrainOnThreads(program, options, TestCorpus(), OnDevices(backend, run), {})
                   .weights_sha256;
    } catch (const InternalError&) {
      // A check found something to have ended before what it came after.
    }
    EXPECT_NE(digest, serial.weights_sha256) << of_first;
  }
}

TEST(GpuRun, SpansAreOnTheRunsClockAndFollowTheirMessages) {
  const Program program = Lower("1f1b", 2);
  const TrainingOptions options = Options(program);
  LateBackend backend(2, 3);
  const TrainingResult result = OnLateGpus(program, options, backend, DeviceTransport::kLocal);
  std::map<std::tuple<ActionKind, int, int64_t>, Span> spans;
  for (const Span& span : result.trace.spans) {
    EXPECT_LE(span.start, span.end);
    spans[{span.kind, span.stage, span.microbatch}] = span;
  }
  for (int64_t i = 0; i < kMicrobatches; ++i) {
    const Span& produced = spans.at({ActionKind::kForward, 0, i});
    const Span& sent = spans.at({ActionKind::kSendForward, 0, i});
    const Span& consumed = spans.at({ActionKind::kForward, 1, i});
    // The clock's anchor is no truer than the device is quick.
    constexpr Nanoseconds kBlur = std::chrono::milliseconds(2);
    EXPECT_GE(sent.start + kBlur, produced.end);
    EXPECT_GE(consumed.start + kBlur, sent.end);
  }
}

TEST(GpuRun, ReportsStepsWithTheirNorms) {
  const Program program = Lower("1f1b", 2, true);
  TrainingOptions options = Options(program, true);
  std::vector<StepReport> serial;
  options.on_step = [&](const StepReport& report) { serial.push_back(report); };
  TrainSerially(PlanOf(program), options, TestCorpus());
  std::vector<StepReport> device;
  options.on_step = [&](const StepReport& report) { device.push_back(report); };
  LateBackend backend(1, 3);
  OnLateGpus(program, options, backend, DeviceTransport::kLocal);
  ASSERT_EQ(device.size(), static_cast<size_t>(kSteps));
  for (size_t i = 0; i < device.size(); ++i) {
    EXPECT_EQ(device[i].loss, serial[i].loss);
    EXPECT_EQ(device[i].gradient_norm, serial[i].gradient_norm);
    EXPECT_EQ(device[i].learning_rate, serial[i].learning_rate);
  }
}

TEST(GpuRun, OfProcessesOverNcclEqualsTheSerialReference) {
  for (const char* schedule : {"1f1b", "2bw", "zb-v"}) {
    const Program program = Lower(schedule, 3);
    const TrainingOptions options = Options(program);
    const TrainingResult serial = TrainSerially(PlanOf(program), options, TestCorpus());
    LateBackend backend(3, 11);
    const DeviceRun run{StagePrecision::kFloat32, DeviceTransport::kNccl};
    const TrainingOptions validated = ValidatedOnDevice(options, backend, run, TestCorpus());
    std::vector<std::unique_ptr<Wire>> wires = SocketPairs(3);
    std::optional<ProcessesResult> result;
    {
      std::vector<std::jthread> threads;
      for (int rank = 0; rank < 3; ++rank) {
        threads.emplace_back([&, rank] {
          auto own =
              TrainOnProcesses(program, validated, TestCorpus(), *wires[static_cast<size_t>(rank)],
                               OnDeviceOfProcess(backend, run, rank), {});
          if (rank == 0) result = std::move(own);
        });
      }
    }
    ASSERT_TRUE(result);
    ExpectSame(result->training, serial);
  }
}

TEST(GpuFailure, OfTheDeviceEndsTheRun) {
  const Program program = Lower("1f1b", 2);
  LateBackend backend(1, 3);
  backend.on_open = [](LateGpu& gpu) {
    gpu.forgets = [&gpu, count = std::make_shared<std::atomic<int>>(0)](Stream) {
      if (++*count == 20) gpu.broken = true;
      return false;
    };
  };
  const std::string reason =
      ReasonOf([&] { OnLateGpus(program, Options(program), backend, DeviceTransport::kLocal); });
  EXPECT_NE(reason.find("late GPU 0: an illegal memory access"), std::string::npos) << reason;
}

TEST(GpuFailure, OfTooManyRanksForNcclIsSaid) {
  const Program program = Lower("1f1b", 3);
  LateBackend backend(2, 3);
  const std::string reason =
      ReasonOf([&] { OnLateGpus(program, Options(program), backend, DeviceTransport::kNccl); });
  EXPECT_NE(reason.find("3 ranks, but 2 GPUs"), std::string::npos) << reason;
}

TEST(GpuFailure, LostMessageSaysWhoWaitsForWhom) {
  const Program program = Lower("1f1b", 2);
  TrainingOptions options = Options(program);
  options.deadline = std::chrono::milliseconds(300);
  LateBackend backend(2, 3);
  backend.nccl.abort_together = 2;
  // The connections have been tried out by then.
  backend.nccl.loses = [count = std::make_shared<int>(0)](const Communicator::Half& half) {
    return half.send && ++*count == 12;
  };
  const std::string reason =
      ReasonOf([&] { OnLateGpus(program, options, backend, DeviceTransport::kNccl); });
  EXPECT_NE(reason.find("waits for rank"), std::string::npos) << reason;
  EXPECT_NE(reason.find("nothing came within 300.00 ms"), std::string::npos) << reason;
  EXPECT_EQ(backend.nccl.aborted_alone, 0);
}

}  // namespace
}  // namespace pipelag
