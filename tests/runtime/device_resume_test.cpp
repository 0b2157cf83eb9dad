// Checkpoints of runs on devices and on the processor are one kind: either goes on with the
// other's, to the last bit where, as on GPUs that are imitated, they compute alike.
#include <gtest/gtest.h>

#include "runtime/checkpoint/folder.h"
#include "runtime/device/train.h"
#include "tests/runtime/late_backend.h"
#include "tests/runtime/resumed_run.h"
#include "tests/runtime/scratch_folder.h"

namespace pipelag {
namespace {

Way OnGpus(Way way, LateBackend& backend) {
  way.run = [&backend](const Program& program, const TrainingOptions& options) {
    const DeviceRun run{StagePrecision::kFloat32, DeviceTransport::kLocal};
    return TrainOnThreads(program, options, TestCorpus(), OnDevices(backend, run), {});
  };
  return way;
}

TEST(GpuResume, GoesOnWithTheProcessorsRunAndTheOtherWayRound) {
  const std::pair<std::string, std::string> updatings[] = {
      {"adamw", "none"}, {"muon", "error-feedback"}, {"adamw", "weight-prediction"}};
  for (const auto& [optimizer, correction] : updatings) {
    for (const char* schedule : {"1f1b", "2bw"}) {
      SCOPED_TRACE(optimizer + ", " + correction + ", " + schedule);
      LateBackend backend(2, 4);
      const Way host = Threads(schedule, 2);
      const Way gpus = OnGpus(Threads(schedule, 2), backend);
      const TrainingOptions options = For(host, optimizer, correction);
      const ScratchFolder of_host;
      const ScratchFolder of_gpus;
      const TrainingResult whole =
          TrainFrom(host, options, {}, {.folder = of_host.path(), .every = 3}, kSteps);
      const TrainingResult same =
          TrainFrom(gpus, options, {}, {.folder = of_gpus.path(), .every = 3}, kSteps);
      EXPECT_EQ(same.weights_sha256, whole.weights_sha256);
      const std::string step = StepFolderName(3);
      EXPECT_EQ(TrainFrom(gpus, options, of_host.path() / step, {}, kSteps).weights_sha256,
                whole.weights_sha256);
      EXPECT_EQ(TrainFrom(host, options, of_gpus.path() / step, {}, kSteps).weights_sha256,
                whole.weights_sha256);
    }
  }
}

/// A copy to the host would wait for the lost message for ever, and an abort would end that wait
/// with weights of nobody.
TEST(GpuResume, OfARunThatLosesAMessageFindsNoCheckpointOfIt) {
  LateBackend backend(2, 3);
  // Behind the messages that try out the connections, and in the first step.
  backend.nccl.loses = [count = std::make_shared<int>(0)](const Communicator::Half& half) {
    return half.send && ++*count == 12;
  };
  Way way = Threads("1f1b", 2);
  way.run = [&backend](const Program& program, const TrainingOptions& options) {
    const DeviceRun run{StagePrecision::kFloat32, DeviceTransport::kNccl};
    return TrainOnThreads(program, options, TestCorpus(), OnDevices(backend, run), {});
  };
  TrainingOptions options = For(way, "adamw", "none");
  options.deadline = std::chrono::milliseconds(300);
  options.poison_freed = false;
  const ScratchFolder folder;
  std::string reason;
  try {
    TrainFrom(way, options, {}, {.folder = folder.path(), .every = 1}, 2);
  } catch (const Error& error) {
    reason = error.what();
  }
  EXPECT_NE(reason.find("nothing came within 300.00 ms"), std::string::npos) << reason;
  EXPECT_FALSE(std::filesystem::exists(folder.path() / StepFolderName(1)));
}

}  // namespace
}  // namespace pipelag
