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
#include "tests/runtime/cuda/plain_products.h"
#include "tests/runtime/late_backend.h"

namespace pipelag::cuda {
namespace {

/// A stage whose work, done at once where it is emulated, is done when the stream comes to it.
class LateStage : public DeviceStage {
 public:
  explicit LateStage(std::unique_ptr<DeviceStage> inner) : inner_(std::move(inner)) {}

  const StageLayout& layout() const override { return inner_->layout(); }
  bool first() const override { return inner_->first(); }
  bool last() const override { return inner_->last(); }
  size_t activation_bytes() const override { return inner_->activation_bytes(); }
  size_t kept_bytes() const override { return inner_->kept_bytes(); }
  size_t weight_bytes() const override { return inner_->weight_bytes(); }
  size_t gradient_bytes() const override { return inner_->gradient_bytes(); }
  size_t message_bytes() const override { return inner_->message_bytes(); }
  size_t scratch_bytes() const override { return inner_->scratch_bytes(); }
  size_t state_bytes() const override { return inner_->state_bytes(); }

  void Begin(Stream stream, void* state, void* scratch) override {
    Do(stream, [=, this] { inner_->Begin(nullptr, state, scratch); });
  }
  void Forward(Stream stream, const void* weights, const Token* tokens, const void* input,
               const Token* targets, void* activation, void* output, double* loss) override {
    Do(stream, [=, this] {
      inner_->Forward(nullptr, weights, tokens, input, targets, activation, output, loss);
    });
  }
  void Backward(Stream stream, const void* weights, const void* activation, const Token* tokens,
                const Token* targets, const void* output_gradient, float loss_scale,
                void* input_gradient, float* gradients) override {
    Do(stream, [=, this] {
      inner_->Backward(nullptr, weights, activation, tokens, targets, output_gradient, loss_scale,
                       input_gradient, gradients);
    });
  }
  void BackwardInput(Stream stream, const void* weights, const void* activation,
                     const Token* targets, const void* output_gradient, float loss_scale,
                     void* input_gradient, void* kept) override {
    Do(stream, [=, this] {
      inner_->BackwardInput(nullptr, weights, activation, targets, output_gradient, loss_scale,
                            input_gradient, kept);
    });
  }
  void BackwardWeight(Stream stream, const void* activation, const Token* tokens, const void* kept,
                      float loss_scale, float* gradients) override {
    Do(stream, [=, this] {
      inner_->BackwardWeight(nullptr, activation, tokens, kept, loss_scale, gradients);
    });
  }
  void JoinTied(Stream stream, float* gradients) override {
    Do(stream, [=, this] { inner_->JoinTied(nullptr, gradients); });
  }
  void SquaredNorms(Stream stream, const float* gradients, double* norms) override {
    Do(stream, [=, this] { inner_->SquaredNorms(nullptr, gradients, norms); });
  }
  void ClipFactor(Stream stream, const double* norms, int count, double max_norm,
                  float* factor) override {
    Do(stream, [=, this] { inner_->ClipFactor(nullptr, norms, count, max_norm, factor); });
  }
  void Update(Stream stream, float* gradients, const void* source, void* target, float rate,
              int64_t number, const void* taken_at, const float* factor) override {
    Do(stream, [=, this] {
      inner_->Update(nullptr, gradients, source, target, rate, number, taken_at, factor);
    });
  }
  void Upload(Stream stream, const float* host, void* weights) override {
    Now(stream, [=, this] { inner_->Upload(nullptr, host, weights); });
  }
  void Download(Stream stream, const void* weights, float* host) override {
    Now(stream, [=, this] { inner_->Download(nullptr, weights, host); });
  }
  void LoadState(Stream stream, Optimizer& host) override {
    Now(stream, [&] { inner_->LoadState(nullptr, host); });
  }
  void StoreState(Stream stream, Optimizer& host) override {
    Now(stream, [&] { inner_->StoreState(nullptr, host); });
  }

 private:
  static void Do(Stream stream, std::function<void()> work) {
    LateMachine::Of(stream).Do(stream, std::move(work));
  }
  static void Now(Stream stream, std::function<void()> work) {
    Do(stream, std::move(work));
    LateMachine::Of(stream).Finish(stream);
  }

  std::unique_ptr<DeviceStage> inner_;
};

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
