// All stages of a network one behind the other on the calling thread, for tests: the plainest
// possible pipeline, one micro-batch at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/network/gemm.h"
#include "runtime/network/stage.h"

namespace pipelag {

template <class Real>
struct StageChain {
  StageChain(const NetworkShape& shape, int stages, int microbatch_size, uint64_t seed = 1,
             Recompute recompute = Recompute::kNone,
             ProductPrecision precision = ProductPrecision::kFp32) {
    PrepareThread();
    for (const LayerRange& range : SplitLayers(shape.layers, stages)) {
      networks.emplace_back(shape, range, microbatch_size, recompute, precision);
      const StageLayout& layout = networks.back().layout();
      std::vector<float> initial(static_cast<size_t>(layout.size()));
      InitialiseWeights(layout, shape, seed, initial.data());
      weights.emplace_back(initial.begin(), initial.end());
      gradients.emplace_back(static_cast<size_t>(layout.gradient_size()), Real{0});
      activations.emplace_back(static_cast<size_t>(networks.back().activation_elements()));
      inputs.emplace_back(static_cast<size_t>(networks.back().boundary_elements()));
      input_gradients.emplace_back(inputs.back().size());
    }
  }

  double Forward(const Token* tokens, const Token* targets) {
    return ForwardFrom(0, tokens, targets);
  }

  /// Starts at `stage` with whatever inputs[stage] holds.
  double ForwardFrom(size_t stage, const Token* tokens, const Token* targets) {
    double loss = 0;
    for (size_t s = stage; s < networks.size(); ++s) {
      loss = networks[s].Forward(weights[s].data(), tokens, inputs[s].data(), targets,
                                 activations[s].data(),
                                 s + 1 < networks.size() ? inputs[s + 1].data() : nullptr);
    }
    return loss;
  }

  void Backward(const Token* tokens, const Token* targets, Real loss_scale) {
    for (size_t s = networks.size(); s-- > 0;) {
      networks[s].Backward(weights[s].data(), activations[s].data(), tokens, targets,
                           s + 1 < networks.size() ? input_gradients[s + 1].data() : nullptr,
                           loss_scale, input_gradients[s].data(), gradients[s].data());
    }
  }

  /// All tensors' values of `buffers` in global order, without gaps.
  std::vector<Real> Flatten(const std::vector<std::vector<Real>>& buffers) const {
    std::vector<Real> flat;
    for (size_t s = 0; s < networks.size(); ++s) {
      for (const StageTensor& tensor : networks[s].layout().tensors()) {
        const Real* begin = buffers[s].data() + tensor.offset;
        flat.insert(flat.end(), begin, begin + tensor.elements());
      }
    }
    return flat;
  }

  std::vector<StageNetwork<Real>> networks;
  std::vector<std::vector<Real>> weights;
  std::vector<std::vector<Real>> gradients;
  std::vector<std::vector<Real>> activations;
  std::vector<std::vector<Real>> inputs;           ///< inputs[0] is unused
  std::vector<std::vector<Real>> input_gradients;  ///< likewise
};

}  // namespace pipelag
