#include "runtime/cpu/cpu_compute.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "runtime/checkpoint/writer.h"
#include "runtime/data/sampler.h"
#include "runtime/network/gemm.h"
#include "runtime/optimizer/norm.h"
#include "runtime/past_event.h"

namespace pipelag {
CpuCompute::StageState::StageState(const TrainingOptions& options, const StagePlan& planned)
    : plan(planned),
      network(options.shape, options.split[static_cast<size_t>(planned.slice)],
              options.microbatch_size, options.recompute, options.precision),
      optimizer(MakeCorrected(options.optimizer, options.correction, network.layout(),
                              {.updates = planned.gradient_delay})) {}

CpuCompute::CpuCompute(const RankPlan& plan, const TrainingOptions& options, int microbatches,
                       const Corpus& corpus, const RunControl& control, OnUpdate on_update)
    : options_(options),
      scale_(static_cast<float>(1.0 / static_cast<double>(TokensPerStep(options, microbatches)))),
      message_elements_(TokensPerStep(options, 1) * options.shape.hidden),
      corpus_(corpus),
      control_(control),
      on_update_(std::move(on_update)),
      first_microbatch_(options.first_step() * microbatches) {
  const auto tokens = static_cast<size_t>(TokensPerStep(options, 1));
  tokens_.resize(tokens);
  targets_.resize(tokens);
  for (const StagePlan& stage : plan.stages) {
    stages_.push_back(std::make_unique<StageState>(options, stage));
  }
  arena_ = std::make_unique<Arena>(ArenaBytes(plan));
  Place(plan);
}

void CpuCompute::Place(const RankPlan& plan) {
  const auto take = [&](int64_t elements) {
    return reinterpret_cast<float*>(arena_->Take(static_cast<size_t>(elements) * sizeof(float)));
  };
  const auto take_slots = [&](int slots, int64_t elements, std::vector<float*>& to) {
    for (int k = 0; k < slots; ++k) {
      to.push_back(take(elements));
      Spoil(to.back(), elements);
    }
  };
  for (const auto& state : stages_) {
    StageState& stage = *state;
    const StageNetwork<float>& network = stage.network;
    take_slots(stage.plan.activation_slots, network.activation_elements(), stage.activations);
    take_slots(stage.plan.kept_slots, network.kept_elements(), stage.kept);
    for (int k = 0; k < stage.plan.weight_buffers; ++k) {
      stage.weights.push_back(take(network.layout().size()));
    }
    for (int k = 0; k < stage.plan.gradient_buffers; ++k) {
      stage.gradients.push_back(take(network.layout().gradient_size()));
    }
    stage.joined.resize(stage.gradients.size());
    BeginStage(options_, stage.plan.speaks ? stage.plan.slice : -1, *stage.optimizer,
               {stage.weights.begin(), stage.weights.begin() + stage.plan.history + 1});
  }
  for (const MessagePlan& planned : plan.messages) {
    auto& [lane, buffers] = messages_.emplace_back(planned.lane, std::vector<float*>());
    take_slots(planned.buffers, message_elements_, buffers);
  }
}

size_t CpuCompute::ArenaBytes(const RankPlan& plan) const {
  const auto floats = [](int64_t elements) {
    return Arena::Rounded(static_cast<size_t>(elements) * sizeof(float));
  };
  size_t bytes = 0;
  for (const auto& stage : stages_) {
    const StageNetwork<float>& network = stage->network;
    bytes +=
        static_cast<size_t>(stage->plan.activation_slots) * floats(network.activation_elements());
    bytes += static_cast<size_t>(stage->plan.kept_slots) * floats(network.kept_elements());
    bytes += static_cast<size_t>(stage->plan.weight_buffers) * floats(network.layout().size());
    bytes += static_cast<size_t>(stage->plan.gradient_buffers) *
             floats(network.layout().gradient_size());
  }
  for (const MessagePlan& planned : plan.messages) {
    bytes += static_cast<size_t>(planned.buffers) * floats(message_elements_);
  }
  return bytes;
}

std::byte* CpuCompute::MessageBuffer(int lane, int index) {
  for (const auto& [number, buffers] : messages_) {
    if (number == lane) return reinterpret_cast<std::byte*>(buffers[static_cast<size_t>(index)]);
  }
  CHECK(false);
}

CpuCompute::StageState& CpuCompute::StateOf(int stage) {
  for (const auto& state : stages_) {
    if (state->plan.stage == stage) return *state;
  }
  CHECK(false);
}

std::span<float> CpuCompute::GradientBuffer(int stage, int index) {
  const StageState& state = StateOf(stage);
  return {state.gradients[static_cast<size_t>(index)],
          static_cast<size_t>(state.network.layout().gradient_size())};
}

std::span<float> CpuCompute::SharedGradient(int stage, int index) {
  const StageLayout& layout = StateOf(stage).network.layout();
  const StageTensor* tensor = layout.tied();
  CHECK(tensor != nullptr && !layout.joins());
  return GradientBuffer(stage, index)
      .subspan(static_cast<size_t>(tensor->offset), static_cast<size_t>(tensor->elements()));
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
    case ActionKind::kBackwardInput:
      BackwardInput(stage, task);
      break;
    case ActionKind::kBackwardWeight:
      BackwardWeight(stage, task);
      break;
    case ActionKind::kUpdate:
      Update(stage, task);
      break;
    case ActionKind::kAllReduce:
      TakeNorms(stage, task);
      break;
    case ActionKind::kSendForward:
    case ActionKind::kReceiveForward:
    case ActionKind::kSendBackward:
    case ActionKind::kReceiveBackward:
      CHECK(false);
  }
  const Nanoseconds end = control_.Now();
  if (options_.poison_freed) SpoilFreed(stage, task);
  return std::make_shared<PastEvent>(Interval{start, end});
}

/// What a read of it must not look like.
void CpuCompute::Spoil(float* values, int64_t elements) const {
  if (!options_.poison_freed) return;
  std::fill_n(values, elements, std::numeric_limits<float>::quiet_NaN());
}

void CpuCompute::SpoilFreed(const StageState& stage, const ComputeTask& task) const {
  if (task.input != nullptr) Spoil(reinterpret_cast<float*>(task.input), message_elements_);
  if (YieldsWeightGradient(task.action.kind)) {
    Spoil(stage.activations[static_cast<size_t>(task.activation)],
          stage.network.activation_elements());
  }
  if (task.action.kind == ActionKind::kBackwardWeight) {
    Spoil(stage.kept[static_cast<size_t>(task.kept)], stage.network.kept_elements());
  }
}

void CpuCompute::FillData(const StageState& stage, const ComputeTask& task) {
  FillMicrobatch(corpus_, options_.seed, first_microbatch_ + task.action.microbatch,
                 options_.microbatch_size, options_.shape.sequence,
                 stage.network.first() ? tokens_.data() : nullptr,
                 stage.network.last() ? targets_.data() : nullptr);
}

void CpuCompute::Forward(StageState& stage, const ComputeTask& task) {
  FillData(stage, task);
  const double loss =
      stage.network.Forward(stage.weights[static_cast<size_t>(task.weights)], tokens_.data(),
                            reinterpret_cast<const float*>(task.input), targets_.data(),
                            stage.activations[static_cast<size_t>(task.activation)],
                            reinterpret_cast<float*>(task.output));
  if (task.loss != nullptr) *task.loss = loss;
  See(stage, task, task.loss == nullptr ? 0 : loss);
}

void CpuCompute::Backward(StageState& stage, const ComputeTask& task) {
  FillData(stage, task);
  stage.network.Backward(stage.weights[static_cast<size_t>(task.weights)],
                         stage.activations[static_cast<size_t>(task.activation)], tokens_.data(),
                         targets_.data(), reinterpret_cast<const float*>(task.input), scale_,
                         reinterpret_cast<float*>(task.output),
                         stage.gradients[static_cast<size_t>(task.gradients)]);
  See(stage, task);
}

void CpuCompute::BackwardInput(StageState& stage, const ComputeTask& task) {
  FillData(stage, task);
  stage.network.BackwardInput(stage.weights[static_cast<size_t>(task.weights)],
                              stage.activations[static_cast<size_t>(task.activation)],
                              targets_.data(), reinterpret_cast<const float*>(task.input), scale_,
                              reinterpret_cast<float*>(task.output),
                              stage.kept[static_cast<size_t>(task.kept)]);
  See(stage, task);
}

void CpuCompute::BackwardWeight(StageState& stage, const ComputeTask& task) {
  FillData(stage, task);
  stage.network.BackwardWeight(stage.activations[static_cast<size_t>(task.activation)],
                               tokens_.data(), stage.kept[static_cast<size_t>(task.kept)],
                               stage.gradients[static_cast<size_t>(task.gradients)]);
}

void CpuCompute::Update(StageState& stage, const ComputeTask& task) {
  const StageLayout& layout = stage.network.layout();
  float* gradients = Joined(stage, task.gradients);
  std::optional<double> norm;
  if (task.norms != nullptr) {
    const std::span<const double> norms(task.norms,
                                        static_cast<size_t>(TensorCount(options_.shape)));
    breaks_.SeeNorms(stage.plan.slice, task.action.step, layout, norms);
    ScaleGradients(layout, ClipFactor(norms, *options_.clip_norm), gradients);
    norm = GlobalNorm(norms);
  }
  const int64_t number = options_.first_step() + task.action.step + 1;
  const float rate = LearningRate(options_.learning_rate, number);
  float* target = stage.weights[static_cast<size_t>(task.target)];
  stage.optimizer->Step(
      gradients, stage.weights[static_cast<size_t>(task.weights)], target, rate, number,
      task.taken_at < 0 ? nullptr : stage.weights[static_cast<size_t>(task.taken_at)]);
  stage.network.WeightsWritten(target);
  std::fill_n(gradients, layout.gradient_size(), 0.0f);
  stage.joined[static_cast<size_t>(task.gradients)] = false;
  if (!stage.plan.speaks) return;
  if (options_.checkpoints != nullptr) {
    options_.checkpoints->Updated(stage.plan.slice, number, *stage.optimizer, target);
  }
  if (stage.network.last() && on_update_) on_update_(task.action.step, rate, norm);
}

std::string CpuCompute::NotFinite(size_t index) {
  std::string tensor;
  for (const float* weights : stages_[index]->weights) {
    if (tensor.empty()) tensor = FirstNotFinite(layout(index), weights);
  }
  return tensor;
}

void CpuCompute::See(const StageState& stage, const ComputeTask& task, double loss) {
  const auto message = [this](const std::byte* bytes) -> std::span<const float> {
    if (bytes == nullptr) return {};
    return {reinterpret_cast<const float*>(bytes), static_cast<size_t>(message_elements_)};
  };
  breaks_.See({.kind = task.action.kind,
               .slice = stage.plan.slice,
               .step = task.action.step,
               .microbatch = task.action.microbatch,
               .input = message(task.input),
               .output = message(task.output),
               .loss = loss,
               .weights = stage.weights[static_cast<size_t>(task.weights)]},
              stage.network.layout());
}

/// The accumulator, all copies of the stage added up, as an update or a norm takes it.
float* CpuCompute::Joined(StageState& stage, int gradients) {
  const auto index = static_cast<size_t>(gradients);
  if (!stage.joined[index]) JoinTied(stage.network.layout(), stage.gradients[index]);
  stage.joined[index] = true;
  return stage.gradients[index];
}

void CpuCompute::TakeNorms(StageState& stage, const ComputeTask& task) {
  const StageLayout& layout = stage.network.layout();
  const float* gradients = Joined(stage, task.gradients);
  for (const StageTensor& tensor : layout.tensors()) {
    if (&tensor == layout.tied() && !layout.joins()) continue;
    task.norms[tensor.global_index] = SquaredNorm(tensor.elements(), gradients + tensor.offset);
  }
}

}  // namespace pipelag
