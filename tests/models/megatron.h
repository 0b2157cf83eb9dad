// How Megatron divided networks in the papers that tests quote.
#pragma once

#include <cstdint>

#include "models/architecture/work.h"

namespace pipelag {

/// As Megatron trained in 2022: the attention matrix is kept in memory.
inline Sharding Megatron(int tensor, int64_t sequences, int64_t tokens) {
  Sharding sharding;
  sharding.tensor = tensor;
  sharding.flash = false;
  sharding.sequences = sequences;
  sharding.tokens = tokens;
  return sharding;
}

}  // namespace pipelag
