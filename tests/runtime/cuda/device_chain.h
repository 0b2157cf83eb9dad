// All stages of a network on a device, one behind the other, one micro-batch at a time: what
// StageChain is on the CPU. Buffers have exactly the sizes asked for and begin full of NaNs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

#include "runtime/cuda/memory.h"
#include "runtime/cuda/stage/stage.h"
#include "tests/runtime/cuda/test_device.h"

namespace pipelag::cuda {

struct DeviceChain {
  /// `options` without its range.
  DeviceChain(DeviceStageOptions options, int stages, bool fuses, uint64_t seed = 1) {
    size_t most = 0;
    for (const LayerRange& range : SplitLayers(options.shape.layers, stages)) {
      options.range = range;
      networks.push_back(MakeStage(options, MakeTestProducts(fuses)));
      most = std::max(most, networks.back()->scratch_bytes());
    }
    scratch = std::make_unique<DeviceBuffer>(most);
    const auto positions = static_cast<size_t>(options.microbatch_size * options.shape.sequence);
    tokens_at = std::make_unique<DeviceBuffer>(positions * sizeof(Token));
    targets_at = std::make_unique<DeviceBuffer>(positions * sizeof(Token));
    loss = std::make_unique<DeviceBuffer>(sizeof(double));
    for (const auto& network : networks) {
      states.emplace_back(network->state_bytes());
      network->Begin(nullptr, states.back().get(), scratch->get());
      const StageLayout& layout = network->layout();
      std::vector<float> initial(static_cast<size_t>(layout.size()));
      InitialiseWeights(layout, options.shape, seed, initial.data());
      weights.emplace_back(network->weight_bytes()).Zero();
      network->Upload(nullptr, initial.data(), weights.back().get());
      gradients.emplace_back(network->gradient_bytes()).Zero();
      activations.emplace_back(network->activation_bytes());
      kept.emplace_back(network->kept_bytes());
      inputs.emplace_back(network->message_bytes());
      input_gradients.emplace_back(network->message_bytes());
      Wait(nullptr);
    }
  }

  void Write(const Token* tokens, const Token* targets) {
    std::copy_n(tokens, tokens_at->bytes() / sizeof(Token), tokens_at->as<Token>());
    std::copy_n(targets, targets_at->bytes() / sizeof(Token), targets_at->as<Token>());
  }

  double Forward(const Token* tokens, const Token* targets) {
    Write(tokens, targets);
    for (size_t s = 0; s < networks.size(); ++s) {
      scratch->Poison();
      activations[s].Poison();
      networks[s]->Forward(nullptr, weights[s].get(), tokens_at->as<Token>(), Input(s),
                           targets_at->as<Token>(), activations[s].get(), Input(s + 1),
                           loss->as<double>());
      Wait(nullptr);
    }
    return *loss->as<double>();
  }

  void Backward(const Token* tokens, const Token* targets, float scale) {
    Write(tokens, targets);
    for (size_t s = networks.size(); s-- > 0;) {
      scratch->Poison();
      networks[s]->Backward(nullptr, weights[s].get(), activations[s].get(), tokens_at->as<Token>(),
                            targets_at->as<Token>(), OutputGradient(s), scale, InputGradient(s),
                            gradients[s].as<float>());
      Wait(nullptr);
    }
  }

  void BackwardInHalves(const Token* tokens, const Token* targets, float scale) {
    Write(tokens, targets);
    for (size_t s = networks.size(); s-- > 0;) {
      scratch->Poison();
      kept[s].Poison();
      networks[s]->BackwardInput(nullptr, weights[s].get(), activations[s].get(),
                                 targets_at->as<Token>(), OutputGradient(s), scale,
                                 InputGradient(s), kept[s].get());
      Wait(nullptr);
    }
    for (size_t s = 0; s < networks.size(); ++s) {
      scratch->Poison();
      networks[s]->BackwardWeight(nullptr, activations[s].get(), tokens_at->as<Token>(),
                                  kept[s].get(), scale, gradients[s].as<float>());
      Wait(nullptr);
    }
  }

  void* Input(size_t s) { return s == 0 || s == networks.size() ? nullptr : inputs[s].get(); }
  void* InputGradient(size_t s) { return s == 0 ? nullptr : input_gradients[s].get(); }
  void* OutputGradient(size_t s) {
    return s + 1 == networks.size() ? nullptr : input_gradients[s + 1].get();
  }

  std::vector<std::unique_ptr<DeviceStage>> networks;
  std::unique_ptr<DeviceBuffer> scratch;
  std::unique_ptr<DeviceBuffer> tokens_at;
  std::unique_ptr<DeviceBuffer> targets_at;
  std::unique_ptr<DeviceBuffer> loss;
  std::vector<DeviceBuffer> states;
  std::vector<DeviceBuffer> weights;
  std::vector<DeviceBuffer> gradients;
  std::vector<DeviceBuffer> activations;
  std::vector<DeviceBuffer> kept;
  std::vector<DeviceBuffer> inputs;           ///< inputs[0] is unused
  std::vector<DeviceBuffer> input_gradients;  ///< likewise
};

}  // namespace pipelag::cuda
