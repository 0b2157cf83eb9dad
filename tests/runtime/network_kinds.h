// Small networks of every kind for tests, with tokens and weights for them.
#pragma once

#include <cstdint>
#include <vector>

#include "models/network.h"
#include "models/random.h"
#include "tests/runtime/stage_chain.h"

namespace pipelag {

inline NetworkShape Tiny() {
  return {.layers = 2, .hidden = 8, .heads = 2, .sequence = 4, .vocabulary = 11};
}

inline NetworkShape Small() {
  return {.layers = 4, .hidden = 32, .heads = 4, .sequence = 24, .vocabulary = 61};
}

/// RMSNorm, rotary positions, SwiGLU, two heads to each key, no biases.
inline NetworkShape Llama(NetworkShape shape) {
  shape.norm = NormChoice::kRms;
  shape.positions = PositionChoice::kRotary;
  shape.mlp = MlpChoice::kSwiGlu;
  shape.key_value_heads = shape.heads / 2;
  shape.bias = false;
  return shape;
}

/// Every option alone, then some together.
inline std::vector<NetworkShape> AllKinds(const NetworkShape& shape) {
  std::vector<NetworkShape> all(8, shape);
  all[1].norm = NormChoice::kRms;
  all[2].positions = PositionChoice::kRotary;
  all[3].mlp = MlpChoice::kSwiGlu;
  all[4].key_value_heads = 1;
  all[5].bias = false;
  all[6].ffn = 5;
  all[7] = Llama(shape);
  return all;
}

inline std::vector<Token> RandomTokens(const NetworkShape& shape, int batch, uint64_t seed) {
  std::vector<Token> tokens(static_cast<size_t>(batch * shape.sequence));
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<Token>(
        UniformBelow(RandomBits(seed, i), static_cast<uint64_t>(shape.vocabulary)));
  }
  return tokens;
}

/// Moves every parameter, biases and gains too, well away from its initial value.
template <class Real>
void Shake(StageChain<Real>& chain, double deviation) {
  for (size_t s = 0; s < chain.networks.size(); ++s) {
    for (const StageTensor& tensor : chain.networks[s].layout().tensors()) {
      for (int64_t i = 0; i < tensor.elements(); ++i) {
        const uint64_t bits =
            RandomBits(99, static_cast<uint64_t>(tensor.global_index), static_cast<uint64_t>(i));
        chain.weights[s][static_cast<size_t>(tensor.offset + i)] +=
            static_cast<Real>(deviation * StandardNormal(bits));
      }
    }
  }
}

}  // namespace pipelag
