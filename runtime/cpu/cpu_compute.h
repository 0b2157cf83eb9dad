// Compute on the calling thread of a CPU: a task has happened when Start returns.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/backends.h"
#include "runtime/breaking.h"
#include "runtime/cpu/arena.h"
#include "runtime/network/stage.h"
#include "runtime/training.h"

namespace pipelag {

/// Stages of one rank. `options`, `corpus` and `control` are borrowed.
class CpuCompute : public TrainingCompute {
 public:
  /// `microbatches` per step: gradients are means over the whole batch.
  CpuCompute(const RankPlan& plan, const TrainingOptions& options, int microbatches,
             const Corpus& corpus, const RunControl& control, OnUpdate on_update = {});

  std::byte* MessageBuffer(int lane, int index) override;
  std::span<float> GradientBuffer(int stage, int index) override;
  std::span<float> SharedGradient(int stage, int index) override;
  EventPtr Start(const ComputeTask& task, std::span<const EventPtr> after) override;

  size_t message_bytes() const override {
    return static_cast<size_t>(message_elements_) * sizeof(float);
  }
  const float* FinalWeights(size_t index, int newest_buffer) override {
    const StageState& stage = *stages_[index];
    return stage.optimizer->FinalWeights(stage.weights[static_cast<size_t>(newest_buffer)]);
  }
  const StageLayout& layout(size_t index) const override {
    return stages_[index]->network.layout();
  }
  std::string NotFinite(size_t index) override;
  std::optional<Breaking> FirstBreaking() const override { return breaks_.first(); }

 private:
  struct StageState {
    StageState(const TrainingOptions& options, const StagePlan& planned);

    StagePlan plan;
    StageNetwork<float> network;
    std::unique_ptr<Optimizer> optimizer;
    std::vector<float*> activations;
    std::vector<float*> kept;
    std::vector<float*> weights;
    std::vector<float*> gradients;
    std::vector<bool> joined;  ///< by accumulator: JoinTied has been done
  };

  size_t ArenaBytes(const RankPlan& plan) const;
  void Place(const RankPlan& plan);
  void FillData(const StageState& stage, const ComputeTask& task);
  void Spoil(float* values, int64_t elements) const;
  void SpoilFreed(const StageState& stage, const ComputeTask& task) const;
  StageState& StateOf(int stage);
  void Forward(StageState& stage, const ComputeTask& task);
  void Backward(StageState& stage, const ComputeTask& task);
  void BackwardInput(StageState& stage, const ComputeTask& task);
  void BackwardWeight(StageState& stage, const ComputeTask& task);
  void Update(StageState& stage, const ComputeTask& task);
  void TakeNorms(StageState& stage, const ComputeTask& task);
  float* Joined(StageState& stage, int gradients);
  void See(const StageState& stage, const ComputeTask& task, double loss = 0);

  const TrainingOptions& options_;
  float scale_;  // of a token's loss
  int64_t message_elements_;
  const Corpus& corpus_;
  const RunControl& control_;
  OnUpdate on_update_;
  int64_t first_microbatch_;  // of the run, among all of the training
  std::vector<std::unique_ptr<StageState>> stages_;
  std::unique_ptr<Arena> arena_;
  std::vector<std::pair<int, std::vector<float*>>> messages_;  // by lane
  std::vector<Token> tokens_;
  std::vector<Token> targets_;
  BreakWatch breaks_;
};

}  // namespace pipelag
