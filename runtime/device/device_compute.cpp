#include "runtime/device/device_compute.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/checkpoint/writer.h"
#include "runtime/data/sampler.h"
#include "runtime/optimizer/norm.h"

namespace pipelag {
namespace {

/// Places for tokens, losses and norms: so many forwards may the host be ahead.
constexpr size_t kRingSlots = 32;
/// For what a worker has under way at a time: two each for some 64 actions and their messages.
constexpr int kMarks = 1024;

}  // namespace

DeviceStageOptions StageOptionsOf(const TrainingOptions& options, LayerRange range,
                                  StagePrecision precision) {
  return {.shape = options.shape,
          .range = range,
          .microbatch_size = options.microbatch_size,
          .recompute = options.recompute,
          .precision = precision,
          .optimizer = options.optimizer,
          .correction = options.correction,
          .delay = {}};
}

DeviceCompute::DeviceCompute(const RankPlan& plan, const TrainingOptions& options,
                             StagePrecision precision, bool graphs, int microbatches,
                             const Corpus& corpus, DeviceClock& clock, const MakeDeviceStage& make,
                             OnUpdate on_update)
    : options_(options),
      corpus_(corpus),
      clock_(clock),
      device_(clock.device()),
      on_update_(std::move(on_update)),
      rank_(plan.rank),
      scale_(static_cast<float>(1.0 / static_cast<double>(TokensPerStep(options, microbatches)))),
      first_microbatch_(options.first_step() * microbatches),
      tokens_(static_cast<size_t>(TokensPerStep(options, 1))),
      norm_count_(static_cast<size_t>(TensorCount(options.shape))),
      stream_(clock, false) {
  device_.MakeCurrent();
  clock_.Reserve(kMarks);
  int accumulators = 0;
  for (const StagePlan& planned : plan.stages) {
    DeviceStageOptions of_stage =
        StageOptionsOf(options, options.split[static_cast<size_t>(planned.slice)], precision);
    of_stage.delay = {.updates = planned.gradient_delay};
    stages_.push_back({planned, make(of_stage)});
    message_bytes_ = stages_.back().stage->message_bytes();
    accumulators = std::max(accumulators, planned.gradient_buffers);
  }
  // The norm of a step is of use between its last B and its updates, as its accumulator is.
  norms_.resize(static_cast<size_t>(options.clip_norm ? accumulators + 1 : 0));
  if (graphs) bodies_ = std::make_unique<Bodies>(device_, stream_.get());
  token_ring_ = std::make_unique<PinnedRing>(device_, kRingSlots, 2 * tokens_ * sizeof(Token));
  loss_ring_ = std::make_unique<PinnedRing>(device_, kRingSlots, sizeof(double));
  if (options.clip_norm) {
    norm_ring_ = std::make_unique<PinnedRing>(device_, kRingSlots, norm_count_ * sizeof(double));
  }
  Taker count;
  Place(plan, count);
  memory_ = DeviceMemory(device_, count.taken);
  Taker taker{memory_.get(), 0};
  Place(plan, taker);
  for (StageState& state : stages_) Rehearse(state);
  Begin();
}

DeviceCompute::~DeviceCompute() {
  constexpr Nanoseconds kPatience = std::chrono::seconds(10);
  if (!device_.Drain(kPatience)) memory_.Abandon();
}

std::byte* DeviceCompute::MessageBuffer(int lane, int index) {
  for (const auto& [number, buffers] : messages_) {
    if (number == lane) return buffers[static_cast<size_t>(index)];
  }
  CHECK(false);
}

DeviceCompute::StageState& DeviceCompute::StateOf(int stage) {
  const auto found = std::find_if(stages_.begin(), stages_.end(), [&](const StageState& state) {
    return state.plan.stage == stage;
  });
  CHECK(found != stages_.end());
  return *found;
}

std::span<float> DeviceCompute::GradientBuffer(int stage, int index) {
  const StageState& state = StateOf(stage);
  return {state.gradients[static_cast<size_t>(index)],
          static_cast<size_t>(state.stage->layout().gradient_size())};
}

std::span<float> DeviceCompute::SharedGradient(int stage, int index) {
  const StageLayout& layout = StateOf(stage).stage->layout();
  const StageTensor* tensor = layout.tied();
  CHECK(tensor != nullptr && !layout.joins());
  return GradientBuffer(stage, index)
      .subspan(static_cast<size_t>(tensor->offset), static_cast<size_t>(tensor->elements()));
}

NormPlace DeviceCompute::NormsOf(int64_t step) {
  device_.MakeCurrent();
  double* const norms = norms_[static_cast<size_t>(step) % norms_.size()];
  const auto stretch = std::make_shared<Stretch>(stream_);
  device_.Fill(stream_.get(), norms, 0, norm_count_ * sizeof(double));
  stretch->End();
  const auto cleared = std::make_shared<DeviceEvent>(
      clock_.control(), fmt::format("rank {} waits for its device to clear norms", rank_));
  cleared->Issue(stretch, {});
  return {{norms, norm_count_}, cleared};
}

EventPtr DeviceCompute::Start(const ComputeTask& task, std::span<const EventPtr> after) {
  clock_.control().CheckRunning();
  device_.MakeCurrent();
  for (const EventPtr& event : after) MakeFollow(device_, stream_.get(), event);
  StageState& state = StateOf(task.action.stage);
  const auto event = std::make_shared<DeviceEvent>(
      clock_.control(),
      fmt::format("rank {} waits for its device to do {}{}{}", rank_, task.action.stage,
                  KindName(task.action.kind),
                  HasMicrobatch(task.action.kind) ? task.action.microbatch : task.action.step));
  const auto stretch = std::make_shared<Stretch>(stream_);
  std::function<void()> settle = Enqueue(state, task, event);
  if (options_.poison_freed) SpoilFreed(state, task);
  stretch->End();
  event->Issue(stretch, {after.begin(), after.end()}, std::move(settle));
  return event;
}

/// Returns what the host has to do once it has happened, if anything.
std::function<void()> DeviceCompute::Enqueue(StageState& state, const ComputeTask& task,
                                             const EventPtr& event) {
  switch (task.action.kind) {
    case ActionKind::kForward:
      return Forward(state, task, event);
    case ActionKind::kBackward:
    case ActionKind::kBackwardInput:
    case ActionKind::kBackwardWeight:
      Pass(state, task);
      return {};
    case ActionKind::kUpdate:
      return Update(state, task, event);
    case ActionKind::kAllReduce:
      TakeNorms(state, task);
      return {};
    case ActionKind::kSendForward:
    case ActionKind::kReceiveForward:
    case ActionKind::kSendBackward:
    case ActionKind::kReceiveBackward:
      break;
  }
  CHECK(false);
}

/// F, B, I or W, of the same pointers for the same buffers.
void DeviceCompute::Pass(const StageState& state, const ComputeTask& task) {
  const auto enqueue = [&] {
    DeviceStage& stage = *state.stage;
    const Stream stream = stream_.get();
    const auto at = [](const auto& slots, int index) { return slots[static_cast<size_t>(index)]; };
    const DeviceTokens tokens = at(state.tokens, task.activation);
    std::byte* const activation = at(state.activations, task.activation);
    switch (task.action.kind) {
      case ActionKind::kForward:
        return stage.Forward(stream, at(state.weights, task.weights), tokens.tokens, task.input,
                             tokens.targets, activation, task.output, loss_);
      case ActionKind::kBackward:
        return stage.Backward(stream, at(state.weights, task.weights), activation, tokens.tokens,
                              tokens.targets, task.input, scale_, task.output,
                              at(state.gradients, task.gradients));
      case ActionKind::kBackwardInput:
        return stage.BackwardInput(stream, at(state.weights, task.weights), activation,
                                   tokens.targets, task.input, scale_, task.output,
                                   at(state.kept, task.kept));
      case ActionKind::kBackwardWeight:
        return stage.BackwardWeight(stream, activation, tokens.tokens, at(state.kept, task.kept),
                                    scale_, at(state.gradients, task.gradients));
      case ActionKind::kUpdate:
      case ActionKind::kAllReduce:
      case ActionKind::kSendForward:
      case ActionKind::kReceiveForward:
      case ActionKind::kSendBackward:
      case ActionKind::kReceiveBackward:
        break;
    }
    CHECK(false);
  };
  if (bodies_) {
    bodies_->Run(Bodies::KeyOf(task), enqueue);
  } else {
    enqueue();
  }
}

void DeviceCompute::SpoilFreed(const StageState& state, const ComputeTask& task) const {
  if (task.input != nullptr) Spoil(task.input, message_bytes_);
  if (YieldsWeightGradient(task.action.kind)) {
    Spoil(state.activations[static_cast<size_t>(task.activation)], state.stage->activation_bytes());
  }
  if (task.action.kind == ActionKind::kBackwardWeight) {
    Spoil(state.kept[static_cast<size_t>(task.kept)], state.stage->kept_bytes());
  }
}

void DeviceCompute::SendTokens(const StageState& state, const ComputeTask& task,
                               const EventPtr& event) {
  const DeviceTokens& to = state.tokens[static_cast<size_t>(task.activation)];
  if (to.tokens == nullptr && to.targets == nullptr) return;
  const size_t slot = token_ring_->Next();
  auto* const tokens = reinterpret_cast<Token*>(token_ring_->At(slot));
  Token* const targets = tokens + tokens_;
  FillMicrobatch(corpus_, options_.seed, first_microbatch_ + task.action.microbatch,
                 options_.microbatch_size, options_.shape.sequence,
                 to.tokens == nullptr ? nullptr : tokens,
                 to.targets == nullptr ? nullptr : targets);
  const size_t bytes = tokens_ * sizeof(Token);
  if (to.tokens != nullptr) device_.Copy(stream_.get(), to.tokens, tokens, bytes);
  if (to.targets != nullptr) device_.Copy(stream_.get(), to.targets, targets, bytes);
  token_ring_->UsedUntil(slot, event);
}

std::function<void()> DeviceCompute::Forward(StageState& state, const ComputeTask& task,
                                             const EventPtr& event) {
  SendTokens(state, task, event);
  Pass(state, task);
  if (task.loss == nullptr) return {};
  const size_t slot = loss_ring_->Next();
  std::byte* const host = loss_ring_->At(slot);
  device_.Copy(stream_.get(), host, loss_, sizeof(double));
  loss_ring_->UsedUntil(slot, event);
  return [host, loss = task.loss] { std::memcpy(loss, host, sizeof(double)); };
}

/// The accumulator, all copies of the stage added up, as an update or a norm takes it.
float* DeviceCompute::Joined(StageState& state, int gradients) {
  const auto index = static_cast<size_t>(gradients);
  if (!state.joined[index]) state.stage->JoinTied(stream_.get(), state.gradients[index]);
  state.joined[index] = true;
  return state.gradients[index];
}

/// To their tensors' places among all of the network: runs of them, one as a rule.
void DeviceCompute::TakeNorms(StageState& state, const ComputeTask& task) {
  const StageLayout& layout = state.stage->layout();
  state.stage->SquaredNorms(stream_.get(), Joined(state, task.gradients), stage_norms_);
  const std::vector<StageTensor>& tensors = layout.tensors();
  // Of a tensor that is shared with another stage the transport takes the norm.
  const auto taken = [&](size_t i) { return &tensors[i] != layout.tied() || layout.joins(); };
  for (size_t begin = 0; begin < tensors.size();) {
    size_t end = begin + 1;
    while (end < tensors.size() && taken(begin) && taken(end) &&
           tensors[end].global_index == tensors[end - 1].global_index + 1) {
      ++end;
    }
    if (taken(begin)) {
      device_.Copy(stream_.get(), task.norms + tensors[begin].global_index, stage_norms_ + begin,
                   (end - begin) * sizeof(double));
    }
    begin = end;
  }
}

std::function<void()> DeviceCompute::Update(StageState& state, const ComputeTask& task,
                                            const EventPtr& event) {
  DeviceStage& stage = *state.stage;
  const auto weights = [&](int buffer) -> std::byte* {
    return buffer < 0 ? nullptr : state.weights[static_cast<size_t>(buffer)];
  };
  const int64_t number = options_.first_step() + task.action.step + 1;
  const float rate = LearningRate(options_.learning_rate, number);
  if (task.norms != nullptr) {
    stage.ClipFactor(stream_.get(), task.norms, static_cast<int>(norm_count_), *options_.clip_norm,
                     clip_factor_);
  }
  stage.Update(stream_.get(), Joined(state, task.gradients), weights(task.weights),
               weights(task.target), rate, number, weights(task.taken_at),
               task.norms == nullptr ? nullptr : clip_factor_);
  state.joined[static_cast<size_t>(task.gradients)] = false;
  if (!state.plan.speaks) return {};
  TellCheckpoints(state, task, number);
  if (!stage.last() || !on_update_) return {};
  return TellUpdate(task, rate, event);
}

/// Waits for all that the stream was given, as Event::Wait does.
void DeviceCompute::FinishStream(std::string waiting) {
  const auto stretch = std::make_shared<Stretch>(stream_);
  stretch->End();
  const DeviceEvent event(clock_.control(), std::move(waiting));
  event.Issue(stretch, {});
  event.Wait();
}

void DeviceCompute::TellCheckpoints(StageState& state, const ComputeTask& task, int64_t number) {
  CheckpointWriter* const writer = options_.checkpoints;
  if (writer == nullptr || !writer->Wants(state.plan.slice, number)) return;
  // A copy to the host waits without a deadline, and takes what an aborted message left for
  // weights.
  FinishStream(fmt::format("rank {} waits for its device to do {}U{} for a checkpoint", rank_,
                           task.action.stage, task.action.step));
  std::vector<float> weights(static_cast<size_t>(state.stage->layout().size()));
  state.stage->Download(stream_.get(), state.weights[static_cast<size_t>(task.target)],
                        weights.data());
  state.stage->StoreState(stream_.get(), HostOptimizer(state));
  writer->Updated(state.plan.slice, number, HostOptimizer(state), weights.data());
}

std::function<void()> DeviceCompute::TellUpdate(const ComputeTask& task, float rate,
                                                const EventPtr& event) {
  if (task.norms == nullptr) {
    return [this, step = task.action.step, rate] { on_update_(step, rate, std::nullopt); };
  }
  const size_t slot = norm_ring_->Next();
  const auto* const host = reinterpret_cast<double*>(norm_ring_->At(slot));
  device_.Copy(stream_.get(), norm_ring_->At(slot), task.norms, norm_count_ * sizeof(double));
  norm_ring_->UsedUntil(slot, event);
  return [this, host, step = task.action.step, rate] {
    on_update_(step, rate, GlobalNorm({host, norm_count_}));
  };
}

const float* DeviceCompute::FinalWeights(size_t index, int newest_buffer) {
  device_.MakeCurrent();
  StageState& state = stages_[index];
  if (!state.final_weights.empty()) return state.final_weights.data();
  state.final_weights.resize(static_cast<size_t>(state.stage->layout().size()));
  state.stage->Download(stream_.get(), state.weights[static_cast<size_t>(newest_buffer)],
                        state.final_weights.data());
  if (options_.correction.name != "none") {
    Optimizer& host = HostOptimizer(state);
    state.stage->StoreState(stream_.get(), host);
    const float* const own = host.FinalWeights(state.final_weights.data());
    if (own != state.final_weights.data()) {
      state.final_weights.assign(own, own + state.stage->layout().size());
    }
  }
  if (++finished_ == stages_.size()) memory_ = {};
  return state.final_weights.data();
}

std::string DeviceCompute::NotFinite(size_t index) {
  device_.MakeCurrent();
  StageState& state = stages_[index];
  std::vector<float> weights(static_cast<size_t>(state.stage->layout().size()));
  std::string tensor;
  for (std::byte* version : state.weights) {
    state.stage->Download(stream_.get(), version, weights.data());
    if (tensor.empty()) tensor = FirstNotFinite(state.stage->layout(), weights.data());
  }
  return tensor;
}

}  // namespace pipelag
