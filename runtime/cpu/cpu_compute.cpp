#include "runtime/cpu/cpu_compute.h"

#include <algorithm>

#include "runtime/data/sampler.h"
#include "runtime/network/gemm.h"
#include "runtime/optimizer/norm.h"

namespace pipelag {
namespace {

/// It has happened already.
class PastEvent : public Event {
 public:
  explicit PastEvent(Interval when) : when_(when) {}
  bool Happened() const override { return true; }
  void Wait() const override {}
  Interval When() const override { return when_; }

 private:
  Interval when_;
};

}  // namespace

CpuCompute::CpuCompute(const RankPlan& plan, const TrainingOptions& options, int microbatches,
                       const Corpus& corpus, const RunControl& control)
    : options_(options), microbatches_(microbatches), corpus_(corpus), control_(control) {
  const auto tokens = static_cast<size_t>(options.microbatch_size) *
                      static_cast<size_t>(options.shape.sequence);
  tokens_.resize(tokens);
  targets_.resize(tokens);
  for (const StagePlan& stage : plan.stages) {
    stages_.push_back(std::make_unique<StageState>(options.shape,
                                                   options.split[static_cast<size_t>(stage.stage)],
                                                   options.microbatch_size, stage.stage));
    stages_.back()->optimizer =
        MakeCorrected(options.optimizer, options.correction, stages_.back()->network.layout(),
                      {.updates = stage.gradient_delay});
  }
  arena_ = std::make_unique<Arena>(ArenaBytes(plan));
  const auto take = [&](int64_t elements) {
    return reinterpret_cast<float*>(arena_->Take(static_cast<size_t>(elements) * sizeof(float)));
  };
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    const StagePlan& planned = plan.stages[i];
    StageState& stage = *stages_[i];
    const StageNetwork<float>& network = stage.network;
    for (int k = 0; k < planned.activation_slots; ++k) {
      stage.activations.push_back(take(network.activation_elements()));
    }
    for (int k = 0; k < planned.weight_buffers; ++k) {
      stage.weights.push_back(take(network.layout().size()));
    }
    for (int k = 0; k < planned.gradient_buffers; ++k) {
      stage.gradients.push_back(take(network.layout().size()));
    }
    InitialiseWeights(network.layout(), options.shape, options.seed, stage.weights[0]);
  }
  const size_t message = tokens * static_cast<size_t>(options.shape.hidden) * sizeof(float);
  for (const MessagePlan& planned : plan.messages) {
    auto& [lane, buffers] = messages_.emplace_back(planned.lane, std::vector<std::byte*>());
    for (int k = 0; k < planned.buffers; ++k) buffers.push_back(arena_->Take(message));
  }
}

size_t CpuCompute::ArenaBytes(const RankPlan& plan) const {
  const auto floats = [](int64_t elements) {
    return Arena::Rounded(static_cast<size_t>(elements) * sizeof(float));
  };
  size_t bytes = 0;
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    const StagePlan& planned = plan.stages[i];
    const StageNetwork<float>& network = stages_[i]->network;
    bytes += static_cast<size_t>(planned.activation_slots) * floats(network.activation_elements());
    bytes += static_cast<size_t>(planned.weight_buffers + planned.gradient_buffers) *
             floats(network.layout().size());
  }
  for (const MessagePlan& planned : plan.messages) {
    bytes += static_cast<size_t>(planned.buffers) *
             floats(static_cast<int64_t>(tokens_.size()) * options_.shape.hidden);
  }
  return bytes;
}

std::byte* CpuCompute::MessageBuffer(int lane, int index) {
  for (const auto& [number, buffers] : messages_) {
    if (number == lane) return buffers[static_cast<size_t>(index)];
  }
  CHECK(false);
}

CpuCompute::StageState& CpuCompute::StateOf(int stage) {
  for (const auto& state : stages_) {
    if (state->stage == stage) return *state;
  }
  CHECK(false);
}

EventPtr CpuCompute::Start(const ComputeTask& task, std::span<const EventPtr> after) {
  for (const EventPtr& event : after) event->Wait();
  control_.CheckRunning();
  PrepareThread();
  StageState& stage = StateOf(task.action.stage);
  const Nanoseconds start = control_.Now();
  switch (task.action.kind) {
    case ActionKind::kForward:
      Forward(stage, task);
      break;
    case ActionKind::kBackward:
      Backward(stage, task);
      break;
    case ActionKind::kUpdate:
      Update(stage, task);
      break;
    case ActionKind::kAllReduce:
      TakeNorms(stage, task);
      break;
    case ActionKind::kBackwardInput:
    case ActionKind::kBackwardWeight:
    case ActionKind::kSendForward:
    case ActionKind::kReceiveForward:
    case ActionKind::kSendBackward:
    case ActionKind::kReceiveBackward:
      CHECK(false);
  }
  return std::make_shared<PastEvent>(Interval{start, control_.Now()});
}

void CpuCompute::Forward(StageState& stage, const ComputeTask& task) {
  const StageNetwork<float>& network = stage.network;
  FillMicrobatch(corpus_, options_.seed, task.action.microbatch, options_.microbatch_size,
                 options_.shape.sequence, network.first() ? tokens_.data() : nullptr,
                 network.last() ? targets_.data() : nullptr);
  const double loss = stage.network.Forward(
      stage.weights[static_cast<size_t>(task.weights)], tokens_.data(),
      reinterpret_cast<const float*>(task.input), targets_.data(),
      stage.activations[static_cast<size_t>(task.activation)],
      reinterpret_cast<float*>(task.output));
  if (task.loss != nullptr) *task.loss = loss;
}

void CpuCompute::Backward(StageState& stage, const ComputeTask& task) {
  const StageNetwork<float>& network = stage.network;
  FillMicrobatch(corpus_, options_.seed, task.action.microbatch, options_.microbatch_size,
                 options_.shape.sequence, network.first() ? tokens_.data() : nullptr,
                 network.last() ? targets_.data() : nullptr);
  const auto scale = static_cast<float>(
      1.0 / static_cast<double>(TokensPerStep(options_, microbatches_)));
  stage.network.Backward(stage.weights[static_cast<size_t>(task.weights)],
                         stage.activations[static_cast<size_t>(task.activation)], tokens_.data(),
                         targets_.data(), reinterpret_cast<const float*>(task.input), scale,
                         reinterpret_cast<float*>(task.output),
                         stage.gradients[static_cast<size_t>(task.gradients)]);
}

void CpuCompute::Update(StageState& stage, const ComputeTask& task) {
  const StageLayout& layout = stage.network.layout();
  float* gradients = stage.gradients[static_cast<size_t>(task.gradients)];
  if (task.norms != nullptr) {
    const std::span<const double> norms(task.norms,
                                        static_cast<size_t>(TensorCount(options_.shape)));
    ScaleGradients(layout, ClipFactor(norms, *options_.clip_norm), gradients);
  }
  const int64_t number = task.action.step + 1;
  stage.optimizer->Step(gradients, stage.weights[static_cast<size_t>(task.weights)],
                        stage.weights[static_cast<size_t>(task.target)],
                        LearningRate(options_.learning_rate, number), number,
                        task.taken_at < 0 ? nullptr
                                          : stage.weights[static_cast<size_t>(task.taken_at)]);
  std::fill_n(gradients, layout.size(), 0.0f);
  if (stage.network.last() && options_.on_step) options_.on_step(number);
}

void CpuCompute::TakeNorms(const StageState& stage, const ComputeTask& task) {
  const StageLayout& layout = stage.network.layout();
  const std::vector<double> own =
      SquaredNorms(layout, stage.gradients[static_cast<size_t>(task.gradients)]);
  for (size_t i = 0; i < own.size(); ++i) {
    task.norms[layout.tensors()[i].global_index] = own[i];
  }
}

}  // namespace pipelag
