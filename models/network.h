// The shape of the network to be trained and its division into stages. Knows no tensors, no time.
#pragma once

#include <cstdint>
#include <vector>

namespace pipelag {

/// A pre-LayerNorm GPT: learned positions, tanh-GELU, untied head without bias, biases elsewhere.
struct NetworkShape {
  int layers = 4;
  int hidden = 128;  ///< channels C; a multiple of `heads`
  int heads = 4;
  int sequence = 64;  ///< tokens per sequence T
  int vocabulary = 256;

  bool operator==(const NetworkShape&) const = default;
};

/// Throws Error with one sentence if a size is not positive or `heads` does not divide `hidden`.
void CheckShape(const NetworkShape& shape);

/// Layers [first, last) of a stage. The first stage also holds the embeddings, the last one the
/// final LayerNorm and the head.
struct LayerRange {
  int first = 0;
  int last = 0;
  bool operator==(const LayerRange&) const = default;
};

/// Splits `layers` evenly over `stages`; the first (layers mod stages) stages get one more.
/// Throws Error if there are more stages than layers or a number is not positive.
std::vector<LayerRange> SplitLayers(int layers, int stages);

/// By hand: counts[s] layers on stage s, every count positive, adding up to `layers`; else Error.
std::vector<LayerRange> SplitLayers(int layers, const std::vector<int>& counts);

}  // namespace pipelag
