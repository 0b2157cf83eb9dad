#include "runtime/device/validation.h"

#include <utility>

#include "models/error.h"
#include "runtime/data/sampler.h"

namespace pipelag {
namespace {

constexpr Nanoseconds kPatience = std::chrono::minutes(10);

/// Device memory of all micro-batches' boundary tensors.
struct Boundary {
  Boundary(ComputeDevice& device, size_t of_one, int64_t count)
      : bytes(of_one), memory(device, of_one * static_cast<size_t>(count)) {}

  std::byte* At(int64_t i) const { return memory.get() + static_cast<size_t>(i) * bytes; }

  size_t bytes;
  DeviceMemory memory;
};

void Finish(ComputeDevice& device) {
  if (!device.Drain(kPatience)) throw Error(device.name() + ": the validation does not end");
}

}  // namespace

double DeviceValidationLoss(const TrainingOptions& options, StagePrecision precision,
                            const Corpus& corpus, const std::vector<const float*>& stage_weights,
                            ComputeDevice& device, const MakeDeviceStage& make) {
  device.MakeCurrent();
  const OwnedStream stream(device, false);
  const int64_t count = options.validation_microbatches;
  const auto tokens = static_cast<size_t>(TokensPerStep(options, 1));
  std::vector<Token> host(2 * tokens);
  const DeviceMemory data(device, 2 * tokens * sizeof(Token) + DeviceStage::kAlignment);
  auto* const device_tokens = reinterpret_cast<Token*>(data.get());
  const size_t targets_at = (tokens * sizeof(Token) + DeviceStage::kAlignment - 1) /
                            DeviceStage::kAlignment * DeviceStage::kAlignment;
  auto* const device_targets = reinterpret_cast<Token*>(data.get() + targets_at);
  const DeviceMemory loss_memory(device, DeviceStage::kAlignment);
  std::unique_ptr<Boundary> input;
  std::unique_ptr<Boundary> output;
  double sum = 0;
  for (size_t s = 0; s < options.split.size(); ++s) {
    DeviceStageOptions of_stage = StageOptionsOf(options, options.split[s], precision);
    of_stage.recompute = Recompute::kNone;
    of_stage.optimizer = {.name = "sgd", .momentum = 0.0f};  // the one with the least state
    of_stage.correction = {};
    const std::unique_ptr<DeviceStage> stage = make(of_stage);
    const DeviceMemory weights(device, stage->weight_bytes());
    const DeviceMemory activation(device, stage->activation_bytes());
    const DeviceMemory scratch(device, stage->scratch_bytes());
    const DeviceMemory state(device, stage->state_bytes());
    if (!output) {
      input = std::make_unique<Boundary>(device, stage->message_bytes(), count);
      output = std::make_unique<Boundary>(device, stage->message_bytes(), count);
    }
    device.Fill(stream.get(), weights.get(), 0, stage->weight_bytes());
    stage->Begin(stream.get(), state.get(), scratch.get());
    stage->Upload(stream.get(), stage_weights[s], weights.get());
    for (int64_t i = 0; i < count; ++i) {
      FillValidation(corpus, i, count, options.microbatch_size, options.shape.sequence, host.data(),
                     host.data() + tokens);
      device.Copy(stream.get(), device_tokens, host.data(), tokens * sizeof(Token));
      device.Copy(stream.get(), device_targets, host.data() + tokens, tokens * sizeof(Token));
      stage->Forward(stream.get(), weights.get(), device_tokens, input->At(i), device_targets,
                     activation.get(), output->At(i), reinterpret_cast<double*>(loss_memory.get()));
      double loss = 0;
      if (stage->last()) device.Copy(stream.get(), &loss, loss_memory.get(), sizeof loss);
      Finish(device);  // the tokens and the loss are the host's again
      sum += loss;
    }
    std::swap(input, output);
  }
  return sum / static_cast<double>(count) / static_cast<double>(tokens);
}

}  // namespace pipelag
