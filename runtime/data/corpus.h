// Tokens to train on and tokens to validate on, out of files of several formats. Knows no batches
// and no network beyond the length of a sequence.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "runtime/data/token_sequence.h"

namespace pipelag {

/// Each part holds at least one sequence and the token after it.
struct Corpus {
  std::string source;        ///< for people: a file's name, or the grammar
  TokenSequence train;       ///< the first 90 %, rounded down, unless the rest is of its own files
  TokenSequence validation;  ///< the rest
  bool bytes = true;         ///< tokens are the bytes of a text
  /// Nats per byte that no model can beat in the long run, where that is known.
  std::optional<double> entropy_rate = std::nullopt;
};

/// Cuts `bytes` in two. Throws Error naming `source` if it is empty or if a part is shorter than
/// sequence + 1 bytes.
Corpus CutCorpus(std::string source, const std::vector<uint8_t>& bytes, int sequence);

/// The tokens of a file, which stay there: with an ending other than .bin the bytes of a text; else
/// those of llm.c (a header of 256 int32: 20240520, version 1, number of tokens; then uint16), or
/// without that header nanoGPT's (uint16 from the first byte). Throws Error naming the file if it
/// cannot be read or its length is not what the format says.
TokenSequence OpenTokens(const std::filesystem::path& file);

/// The files one behind the other, cut in two unless `validation` names files of its own. Throws
/// Error as above and for texts beside files of tokens.
Corpus LoadCorpus(const std::vector<std::string>& files, const std::vector<std::string>& validation,
                  int sequence);

}  // namespace pipelag
