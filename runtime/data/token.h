// What a network reads and predicts. Knows no text and no network.
#pragma once

#include <cstdint>

namespace pipelag {

/// Number of an entry of the vocabulary: a byte of a text, or of any vocabulary up to kMostTokens.
using Token = uint16_t;
constexpr int kMostTokens = 65536;

}  // namespace pipelag
