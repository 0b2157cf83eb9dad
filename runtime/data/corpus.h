// Text to train on: bytes, cut into a part for training and a part for validation. Knows no batches
// and no network beyond the length of a sequence.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace pipelag {

/// Tokens are bytes, 0 to 255. Each part holds at least one sequence and the byte after it.
struct Corpus {
  std::string source;               ///< for people: a file's name, or the grammar
  std::vector<uint8_t> train;       ///< the first 90 %, rounded down
  std::vector<uint8_t> validation;  ///< the rest
  /// Nats per byte that no model can beat in the long run, where that is known.
  std::optional<double> entropy_rate;
};

/// Cuts `bytes` in two. Throws Error naming `source` if it is empty or if a part is shorter than
/// sequence + 1 bytes.
Corpus CutCorpus(std::string source, const std::vector<uint8_t>& bytes, int sequence);

/// The bytes of a file. Throws Error naming it if it cannot be read or as above.
Corpus LoadText(const std::filesystem::path& file, int sequence);

}  // namespace pipelag
