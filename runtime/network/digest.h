// One short fingerprint of all weights of a network, the same for every partition of
// it. Knows layouts and bytes only.
#pragma once

#include <string>
#include <vector>

#include "runtime/network/layout.h"

namespace pipelag {

/// Weights of one stage; both are borrowed.
struct StageWeights {
  const StageLayout* layout = nullptr;
  const float* weights = nullptr;  ///< layout->size() elements
};

/// SHA-256, 64 lower-case hexadecimal digits, of every tensor's float32 values, little-endian, in
/// global tensor order, without gaps; a tied embedding once. `stages` in network order, each once,
/// the whole network.
std::string WeightsSha256(const std::vector<StageWeights>& stages);

}  // namespace pipelag
