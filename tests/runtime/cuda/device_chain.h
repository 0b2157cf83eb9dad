// All stages of a network on an emulated device, one behind the other, one micro-batch at a time:
// what StageChain is on the CPU. Buffers have exactly the sizes asked for and begin full of NaNs.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "runtime/cuda/kernels/bfloat16.h"
#include "runtime/cuda/stage/stage.h"
#include "tests/runtime/cuda/plain_products.h"

namespace pipelag::cuda {

/// Aligned as a DeviceStage wants it, and no byte longer.
class DeviceBuffer {
 public:
  explicit DeviceBuffer(size_t bytes) : bytes_(bytes) {
    data_.reset(static_cast<std::byte*>(operator new[](bytes, kAlignment)));
    Poison();
  }
  void Poison() { std::memset(data_.get(), 0xff, bytes_); }
  void Zero() { std::memset(data_.get(), 0, bytes_); }

  void* get() { return data_.get(); }
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(data_.get());
  }
  size_t bytes() const { return bytes_; }
  bool operator==(const DeviceBuffer& other) const {
    return bytes_ == other.bytes_ && std::memcmp(data_.get(), other.data_.get(), bytes_) == 0;
  }

 private:
  static constexpr std::align_val_t kAlignment{DeviceStage::kAlignment};
  struct Free {
    void operator()(std::byte* memory) const { operator delete[](memory, kAlignment); }
  };
  std::unique_ptr<std::byte[], Free> data_;
  size_t bytes_;
};

struct DeviceChain {
  /// `options` without its range.
  DeviceChain(DeviceStageOptions options, int stages, bool fuses, uint64_t seed = 1) {
    size_t most = 0;
    for (const LayerRange& range : SplitLayers(options.shape.layers, stages)) {
      options.range = range;
      networks.push_back(MakeStage(options, MakePlainProducts(fuses)));
      most = std::max(most, networks.back()->scratch_bytes());
    }
    scratch = std::make_unique<DeviceBuffer>(most);
    for (const auto& network : networks) {
      states.emplace_back(network->state_bytes());
      network->Begin(nullptr, states.back().get(), scratch->get());
      const StageLayout& layout = network->layout();
      std::vector<float> initial(static_cast<size_t>(layout.size()));
      InitialiseWeights(layout, options.shape, seed, initial.data());
      weights.emplace_back(network->weight_bytes());
      network->Upload(nullptr, initial.data(), weights.back().get());
      gradients.emplace_back(network->gradient_bytes()).Zero();
      activations.emplace_back(network->activation_bytes());
      kept.emplace_back(network->kept_bytes());
      inputs.emplace_back(network->message_bytes());
      input_gradients.emplace_back(network->message_bytes());
    }
  }

  double Forward(const Token* tokens, const Token* targets) {
    double loss = 0;
    for (size_t s = 0; s < networks.size(); ++s) {
      scratch->Poison();
      activations[s].Poison();
      networks[s]->Forward(nullptr, weights[s].get(), tokens, Input(s), targets,
                           activations[s].get(), Input(s + 1), &loss);
    }
    return loss;
  }

  void Backward(const Token* tokens, const Token* targets, float scale) {
    for (size_t s = networks.size(); s-- > 0;) {
      scratch->Poison();
      networks[s]->Backward(nullptr, weights[s].get(), activations[s].get(), tokens, targets,
                            OutputGradient(s), scale, InputGradient(s), gradients[s].as<float>());
    }
  }

  void BackwardInHalves(const Token* tokens, const Token* targets, float scale) {
    for (size_t s = networks.size(); s-- > 0;) {
      scratch->Poison();
      kept[s].Poison();
      networks[s]->BackwardInput(nullptr, weights[s].get(), activations[s].get(), targets,
                                 OutputGradient(s), scale, InputGradient(s), kept[s].get());
    }
    for (size_t s = 0; s < networks.size(); ++s) {
      scratch->Poison();
      networks[s]->BackwardWeight(nullptr, activations[s].get(), tokens, kept[s].get(), scale,
                                  gradients[s].as<float>());
    }
  }

  void* Input(size_t s) { return s == 0 || s == networks.size() ? nullptr : inputs[s].get(); }
  void* InputGradient(size_t s) { return s == 0 ? nullptr : input_gradients[s].get(); }
  void* OutputGradient(size_t s) {
    return s + 1 == networks.size() ? nullptr : input_gradients[s + 1].get();
  }

  std::vector<std::unique_ptr<DeviceStage>> networks;
  std::unique_ptr<DeviceBuffer> scratch;
  std::vector<DeviceBuffer> states;
  std::vector<DeviceBuffer> weights;
  std::vector<DeviceBuffer> gradients;
  std::vector<DeviceBuffer> activations;
  std::vector<DeviceBuffer> kept;
  std::vector<DeviceBuffer> inputs;           ///< inputs[0] is unused
  std::vector<DeviceBuffer> input_gradients;  ///< likewise
};

}  // namespace pipelag::cuda
