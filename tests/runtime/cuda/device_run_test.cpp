// Whole runs with the device's own kernels on an emulated device: ranks on GPUs that are late,
// stages as they are on a GPU, beside the serial reference.
#include <gtest/gtest.h>

#include <cmath>
#include <utility>

#include "models/schedule/generators.h"
#include "runtime/cuda/stage/stage.h"
#include "runtime/data/grammar.h"
#include "runtime/device/train.h"
#include "runtime/serial.h"
#include "tests/runtime/cuda/late_stage.h"
#include "tests/runtime/cuda/plain_products.h"
#include "tests/runtime/late_backend.h"

namespace pipelag::cuda {
namespace {

class EmulatedBackend : public LateBackend {
 public:
  using LateBackend::LateBackend;
  std::unique_ptr<DeviceStage> MakeStage(const DeviceStageOptions& options) override {
    return std::make_unique<LateStage>(cuda::MakeStage(options, MakePlainProducts(true)));
  }
};

constexpr int64_t kSteps = 3;

TrainingOptions Options(const Program& program, bool clipped) {
  TrainingOptions options;
  options.shape = {.layers = 2, .hidden = 16, .heads = 2, .sequence = 4, .vocabulary = 256};
  options.split = SplitLayers(options.shape.layers, program.schedule().stages);
  options.microbatch_size = 1;
  options.optimizer.name = "sgd";  // AdamW divides by what may be rounding alone
  options.optimizer.learning_rate = 0.1f;
  options.learning_rate = {.peak = 0.1f, .total_updates = kSteps};
  options.validation_microbatches = 2;
  options.poison_freed = true;
  if (clipped) options.clip_norm = 0.5;
  return options;
}

void ExpectNear(double device, double serial, double tolerance) {
  EXPECT_NEAR(device, serial, tolerance * std::abs(serial));
}

TEST(EmulatedRun, IsTheSerialReferencesWithinRounding) {
  const Corpus corpus = GrammarCorpus(3, 4, 4000);
  for (const auto& [schedule, ranks] : {std::pair{"zb-h1", 2}, {"2bw", 2}}) {
    SCOPED_TRACE(schedule);
    const bool clipped = std::string_view(schedule) != "zb-h1";
    const Program program(Generate(schedule, {.ranks = ranks, .microbatches = 2, .norm = clipped}),
                          kSteps);
    const TrainingOptions options = Options(program, clipped);
    const TrainingResult serial = TrainSerially(PlanOf(program), options, corpus);
    std::string digest;
    for (const DeviceTransport transport : {DeviceTransport::kLocal, DeviceTransport::kNccl}) {
      EmulatedBackend backend(2, 6);
      const DeviceRun run{StagePrecision::kFloat32, transport};
      const TrainingResult device =
          TrainOnThreads(program, ValidatedOnDevice(options, backend, run, corpus), corpus,
                         OnDevices(backend, run), {});
      ASSERT_FALSE(device.diverged) << device.diverged_where;
      for (size_t step = 0; step < device.step_losses.size(); ++step) {
        ExpectNear(device.step_losses[step], serial.step_losses[step], 1e-5);
      }
      ExpectNear(device.validation_loss, serial.validation_loss, 1e-5);
      EXPECT_TRUE(digest.empty() || device.weights_sha256 == digest);
      digest = device.weights_sha256;
    }
    EmulatedBackend replayed_on(1, 6);
    const TrainingResult replayed =
        TrainOnThreads(program, options, corpus,
                       OnDevices(replayed_on, {StagePrecision::kFloat32, DeviceTransport::kLocal,
                                               /*graphs=*/true}),
                       {});
    EXPECT_EQ(replayed.weights_sha256, digest);
    EmulatedBackend backend(1, 6);
    const DeviceRun run{StagePrecision::kBfloat16, DeviceTransport::kLocal};
    const TrainingResult device =
        TrainOnThreads(program, ValidatedOnDevice(options, backend, run, corpus), corpus,
                       OnDevices(backend, run), {});
    ExpectNear(device.validation_loss, serial.validation_loss, 1e-2);
  }
}

TEST(EmulatedRun, IsOfTheSameBitsOnAnyNumberOfRanks) {
  const Corpus corpus = GrammarCorpus(3, 4, 4000);
  std::string digest;
  for (const auto& [schedule, ranks] : {std::pair{"gpipe", 1}, {"1f1b", 2}}) {
    SCOPED_TRACE(schedule);
    const Program program(
        Generate(schedule, {.ranks = ranks, .microbatches = 2, .norm = true, .tied = true}),
        kSteps);
    TrainingOptions options = Options(program, true);
    options.shape.tied = true;
    EmulatedBackend backend(ranks, 8);
    const DeviceRun run{StagePrecision::kFloat32, DeviceTransport::kLocal};
    const TrainingResult device =
        TrainOnThreads(program, ValidatedOnDevice(options, backend, run, corpus), corpus,
                       OnDevices(backend, run), {});
    const TrainingResult serial = TrainSerially(PlanOf(program), options, corpus);
    ExpectNear(device.validation_loss, serial.validation_loss, 1e-5);
    EXPECT_TRUE(digest.empty() || device.weights_sha256 == digest);
    digest = device.weights_sha256;
  }
}

}  // namespace
}  // namespace pipelag::cuda
