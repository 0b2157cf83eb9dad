// Compute on the calling thread of a CPU: a task has happened when Start returns.
#pragma once

#include <memory>
#include <vector>

#include "runtime/compute.h"
#include "runtime/cpu/arena.h"
#include "runtime/network/stage.h"
#include "runtime/run_control.h"
#include "runtime/training.h"

namespace pipelag {

/// Stages of one rank. `options`, `corpus` and `control` are borrowed.
class CpuCompute : public Compute {
 public:
  /// `microbatches` per step: gradients are means over the whole batch.
  CpuCompute(const RankPlan& plan, const TrainingOptions& options, int microbatches,
             const Corpus& corpus, const RunControl& control);

  std::byte* MessageBuffer(int lane, int index) override;
  EventPtr Start(const ComputeTask& task, std::span<const EventPtr> after) override;

  /// Weights of the `index`-th stage of the plan.
  const float* Weights(size_t index, int buffer) const {
    return stages_[index]->weights[static_cast<size_t>(buffer)];
  }
  const StageLayout& layout(size_t index) const { return stages_[index]->network.layout(); }

 private:
  struct StageState {
    StageState(const NetworkShape& shape, LayerRange range, int microbatch_size, int stage_number)
        : stage(stage_number), network(shape, range, microbatch_size) {}

    int stage;
    StageNetwork<float> network;
    std::unique_ptr<Optimizer> optimizer;
    std::vector<float*> activations;
    std::vector<float*> weights;
    std::vector<float*> gradients;
  };

  size_t ArenaBytes(const RankPlan& plan) const;
  StageState& StateOf(int stage);
  void Forward(StageState& stage, const ComputeTask& task);
  void Backward(StageState& stage, const ComputeTask& task);
  void Update(StageState& stage, const ComputeTask& task);
  void TakeNorms(const StageState& stage, const ComputeTask& task);

  const TrainingOptions& options_;
  int microbatches_;
  const Corpus& corpus_;
  const RunControl& control_;
  std::vector<std::unique_ptr<StageState>> stages_;
  std::unique_ptr<Arena> arena_;
  std::vector<std::pair<int, std::vector<std::byte*>>> messages_;  // by lane
  std::vector<uint8_t> tokens_;
  std::vector<uint8_t> targets_;
};

}  // namespace pipelag
