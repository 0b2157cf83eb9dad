// Compute on a device: tasks are enqueued on one stream, what they come after are marks of other
// streams, and the host only runs ahead. Knows no CUDA, no other rank and no schedule.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/backends.h"
#include "runtime/data/corpus.h"
#include "runtime/device/bodies.h"
#include "runtime/device/device_event.h"
#include "runtime/device/device_stage.h"
#include "runtime/device/pinned_ring.h"
#include "runtime/training.h"

namespace pipelag {

using MakeDeviceStage = std::function<std::unique_ptr<DeviceStage>(const DeviceStageOptions&)>;

/// What of a training run a stage on a device is told.
DeviceStageOptions StageOptionsOf(const TrainingOptions& options, LayerRange range,
                                  StagePrecision precision);

/// Stages of one rank on one device, in one block of its memory with as many slots as the plan
/// says. Start returns at once; it waits on the host for the issue of what the task comes after
/// (DeviceEvent), for a place in pinned memory whose last use is some dozens of actions ago, and at
/// checkpoints. Tokens go to the device with a micro-batch's F and stay with its activation slot;
/// losses and norms come back through pinned memory and are the host's once the event was waited
/// for. Everything given is borrowed.
class DeviceCompute : public TrainingCompute {
 public:
  /// `graphs`: passes are captured when they are first made, and replayed from then on.
  DeviceCompute(const RankPlan& plan, const TrainingOptions& options, StagePrecision precision,
                bool graphs, int microbatches, const Corpus& corpus, DeviceClock& clock,
                const MakeDeviceStage& make, OnUpdate on_update = {});
  /// Waits for the device as long as a wait may take; what it is still at then is never freed.
  ~DeviceCompute() override;

  std::byte* MessageBuffer(int lane, int index) override;
  std::span<float> GradientBuffer(int stage, int index) override;
  std::span<float> SharedGradient(int stage, int index) override;
  NormPlace NormsOf(int64_t step) override;
  EventPtr Start(const ComputeTask& task, std::span<const EventPtr> after) override;

  size_t message_bytes() const override { return message_bytes_; }
  const StageLayout& layout(size_t index) const override { return stages_[index].stage->layout(); }
  /// Called for every stage; after the last one the device memory is given back.
  const float* FinalWeights(size_t index, int newest_buffer) override;
  std::string NotFinite(size_t index) override;

 private:
  /// Of the micro-batch in an activation slot.
  struct DeviceTokens {
    Token* tokens = nullptr;
    Token* targets = nullptr;
  };
  struct StageState {
    StagePlan plan;
    std::unique_ptr<DeviceStage> stage;
    std::vector<std::byte*> activations = {};
    std::vector<DeviceTokens> tokens = {};  // by activation slot
    std::vector<std::byte*> kept = {};
    std::vector<std::byte*> weights = {};
    std::vector<float*> gradients = {};
    std::vector<bool> joined = {};  // by accumulator: JoinTied has been done for the batch
    std::byte* optimizer = nullptr;
    std::vector<float> final_weights = {};
    std::unique_ptr<Optimizer> host_optimizer = nullptr;  // where the host reads its state
  };
  /// Hands out a block of memory; without one it only counts.
  struct Taker {
    std::byte* base = nullptr;
    size_t taken = 0;

    std::byte* Take(size_t bytes);
  };

  void Place(const RankPlan& plan, Taker& taker);
  void Rehearse(StageState& state);
  void Begin();
  void BeginWeights(StageState& state);
  Optimizer& HostOptimizer(StageState& state);
  void Spoil(std::byte* memory, size_t bytes) const;
  void SpoilFreed(const StageState& state, const ComputeTask& task) const;
  StageState& StateOf(int stage);
  std::function<void()> Enqueue(StageState& state, const ComputeTask& task, const EventPtr& event);
  void Pass(const StageState& state, const ComputeTask& task);
  std::function<void()> Forward(StageState& state, const ComputeTask& task, const EventPtr& event);
  void SendTokens(const StageState& state, const ComputeTask& task, const EventPtr& event);
  float* Joined(StageState& state, int gradients);
  void TakeNorms(StageState& state, const ComputeTask& task);
  std::function<void()> Update(StageState& state, const ComputeTask& task, const EventPtr& event);
  void FinishStream(std::string waiting);
  void TellCheckpoints(StageState& state, const ComputeTask& task, int64_t number);
  std::function<void()> TellUpdate(const ComputeTask& task, float rate, const EventPtr& event);

  const TrainingOptions& options_;
  const Corpus& corpus_;
  DeviceClock& clock_;
  ComputeDevice& device_;
  OnUpdate on_update_;
  int rank_;
  float scale_;               // of a token's loss
  int64_t first_microbatch_;  // of the run, among all of the training
  size_t tokens_;             // of a micro-batch
  size_t norm_count_;
  size_t message_bytes_ = 0;
  TimedStream stream_;
  std::vector<StageState> stages_;
  DeviceMemory memory_;
  size_t finished_ = 0;                                            // stages with final weights
  std::vector<std::pair<int, std::vector<std::byte*>>> messages_;  // by lane
  std::byte* scratch_ = nullptr;
  std::vector<double*> norms_;  // a ring over steps
  double* stage_norms_ = nullptr;
  float* clip_factor_ = nullptr;
  double* loss_ = nullptr;          // of the micro-batch that the stream is at
  std::unique_ptr<Bodies> bodies_;  // null: launched kernel by kernel
  std::unique_ptr<PinnedRing> token_ring_;
  std::unique_ptr<PinnedRing> loss_ring_;
  std::unique_ptr<PinnedRing> norm_ring_;
};

}  // namespace pipelag
