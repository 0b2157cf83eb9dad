// How a rank begins: where everything lies in its one block of memory, and what it holds at first.
#include <fmt/format.h>

#include <algorithm>

#include "runtime/device/device_compute.h"

namespace pipelag {
namespace {

/// NaN as a float, as bfloat16 and as a double.
constexpr uint8_t kSpoiled = 0xFF;

}  // namespace

std::byte* DeviceCompute::Taker::Take(size_t bytes) {
  std::byte* const result = base == nullptr ? nullptr : base + taken;
  taken +=
      (bytes + DeviceStage::kAlignment - 1) / DeviceStage::kAlignment * DeviceStage::kAlignment;
  return result;
}

void DeviceCompute::Place(const RankPlan& plan, Taker& taker) {
  const auto take_all = [&](int count, size_t bytes, std::vector<std::byte*>& to) {
    to.clear();
    for (int k = 0; k < count; ++k) to.push_back(taker.Take(bytes));
  };
  size_t scratch = 0;
  size_t most_tensors = 0;
  for (StageState& state : stages_) {
    const DeviceStage& stage = *state.stage;
    scratch = std::max(scratch, stage.scratch_bytes());
    most_tensors = std::max(most_tensors, stage.layout().tensors().size());
    take_all(state.plan.weight_buffers, stage.weight_bytes(), state.weights);
    state.gradients.clear();
    for (int k = 0; k < state.plan.gradient_buffers; ++k) {
      state.gradients.push_back(reinterpret_cast<float*>(taker.Take(stage.gradient_bytes())));
    }
    state.joined.assign(state.gradients.size(), false);
    state.optimizer = taker.Take(stage.state_bytes());
    take_all(state.plan.activation_slots, stage.activation_bytes(), state.activations);
    take_all(state.plan.kept_slots, stage.kept_bytes(), state.kept);
    state.tokens.assign(state.activations.size(), {});
    for (DeviceTokens& of_slot : state.tokens) {
      const size_t bytes = tokens_ * sizeof(Token);
      if (stage.first()) of_slot.tokens = reinterpret_cast<Token*>(taker.Take(bytes));
      if (stage.last()) of_slot.targets = reinterpret_cast<Token*>(taker.Take(bytes));
    }
  }
  messages_.clear();
  for (const MessagePlan& planned : plan.messages) {
    auto& [lane, buffers] = messages_.emplace_back(planned.lane, std::vector<std::byte*>());
    take_all(planned.buffers, message_bytes_, buffers);
  }
  scratch_ = taker.Take(scratch);
  const auto take_doubles = [&](size_t count) {
    return reinterpret_cast<double*>(taker.Take(count * sizeof(double)));
  };
  for (double*& of_step : norms_) of_step = take_doubles(norm_count_);
  stage_norms_ = take_doubles(most_tensors);
  clip_factor_ = reinterpret_cast<float*>(taker.Take(sizeof(float)));
  loss_ = take_doubles(1);
}

/// Whatever the stage will ask for, once, on zeros: a library loads what it has not used yet, and
/// that may wait for all that runs on the GPU, later receives that wait for other ranks among it.
void DeviceCompute::Rehearse(StageState& state) {
  DeviceStage& stage = *state.stage;
  const Stream stream = stream_.get();
  // Weights are written anew; what pads them stays zero.
  for (std::byte* version : state.weights) device_.Fill(stream, version, 0, stage.weight_bytes());
  float* const gradients = state.gradients.front();
  device_.Fill(stream, gradients, 0, stage.gradient_bytes());
  const DeviceTokens& tokens = state.tokens.front();
  for (Token* of_kind : {tokens.tokens, tokens.targets}) {
    if (of_kind != nullptr) device_.Fill(stream, of_kind, 0, tokens_ * sizeof(Token));
  }
  // Whoever has messages on both sides has places for two.
  std::vector<std::byte*> messages;
  for (const auto& [lane, buffers] : messages_) {
    messages.insert(messages.end(), buffers.begin(), buffers.end());
  }
  CHECK(messages.size() >= (stage.first() ? 0U : 1U) + (stage.last() ? 0U : 1U));
  std::byte* const in = messages.empty() ? nullptr : messages.front();
  std::byte* const out = messages.empty() ? nullptr : messages.back();
  for (std::byte* message : messages) device_.Fill(stream, message, 0, message_bytes_);

  std::byte* const weights = state.weights.front();
  std::byte* const activation = state.activations.front();
  stage.Begin(stream, state.optimizer, scratch_);
  stage.Forward(stream, weights, tokens.tokens, in, tokens.targets, activation, out, loss_);
  stage.Backward(stream, weights, activation, tokens.tokens, tokens.targets, in, scale_, out,
                 gradients);
  if (!state.kept.empty()) {
    std::byte* const kept = state.kept.front();
    stage.BackwardInput(stream, weights, activation, tokens.targets, in, scale_, out, kept);
    stage.BackwardWeight(stream, activation, tokens.tokens, kept, scale_, gradients);
  }
  stage.JoinTied(stream, gradients);
  stage.SquaredNorms(stream, gradients, stage_norms_);
  if (options_.clip_norm) {
    device_.Fill(stream, norms_.front(), 0, norm_count_ * sizeof(double));
    stage.ClipFactor(stream, norms_.front(), static_cast<int>(norm_count_), *options_.clip_norm,
                     clip_factor_);
  }
  stage.Update(stream, gradients, weights, weights, 0, 1, weights, nullptr);
}

void DeviceCompute::Begin() {
  for (StageState& state : stages_) {
    DeviceStage& stage = *state.stage;
    for (std::byte* slot : state.activations) Spoil(slot, stage.activation_bytes());
    for (std::byte* slot : state.kept) Spoil(slot, stage.kept_bytes());
    for (float* gradients : state.gradients) {
      device_.Fill(stream_.get(), gradients, 0, stage.gradient_bytes());
    }
    stage.Begin(stream_.get(), state.optimizer, scratch_);
    BeginWeights(state);
  }
  for (const auto& [lane, buffers] : messages_) {
    for (std::byte* buffer : buffers) Spoil(buffer, message_bytes_);
  }
  // Messages come on streams of their own, which know nothing of this.
  FinishStream(fmt::format("rank {} waits for its device to begin", rank_));
}

void DeviceCompute::BeginWeights(StageState& state) {
  DeviceStage& stage = *state.stage;
  const auto elements = static_cast<size_t>(stage.layout().size());
  std::vector<std::unique_ptr<float[]>> host;
  std::vector<float*> versions;
  for (int age = 0; age <= state.plan.history; ++age) {
    host.push_back(std::make_unique_for_overwrite<float[]>(elements));
    versions.push_back(host.back().get());
  }
  const int told = state.plan.speaks ? state.plan.slice : -1;
  BeginVersions(options_, told, stage.layout(), versions);
  if (options_.start) {
    options_.start->ReadState(HostOptimizer(state));
    stage.LoadState(stream_.get(), HostOptimizer(state));
  }
  for (size_t age = 0; age < versions.size(); ++age) {
    stage.Upload(stream_.get(), versions[age], state.weights[age]);
  }
}

Optimizer& DeviceCompute::HostOptimizer(StageState& state) {
  if (!state.host_optimizer) {
    state.host_optimizer =
        MakeCorrected(options_.optimizer, options_.correction, state.stage->layout(),
                      {.updates = state.plan.gradient_delay});
  }
  return *state.host_optimizer;
}

/// What a read of it must not look like.
void DeviceCompute::Spoil(std::byte* memory, size_t bytes) const {
  if (options_.poison_freed) device_.Fill(stream_.get(), memory, kSpoiled, bytes);
}

}  // namespace pipelag
