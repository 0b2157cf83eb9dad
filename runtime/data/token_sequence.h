// A row of tokens that lie where they came from, in memory or in files, one piece behind the other.
// Knows no file format and no network.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "runtime/data/token.h"

namespace pipelag {

/// Tokens that lie together, one or two bytes each, little-endian.
struct TokenPiece {
  /// Fills `to` with bytes of the source from `at` on; throws Error naming it if they cannot be
  /// read. Called by several threads at a time.
  std::function<void(int64_t at, std::span<std::byte> to)> read;
  int64_t count = 0;
  int width = 1;       ///< bytes per token, 1 or 2
  std::string source;  ///< for people: a file's name
  int64_t offset = 0;  ///< of the first token's first byte within the source
};

class TokenSequence {
 public:
  void Append(TokenPiece piece);
  int64_t size() const { return size_; }
  const std::vector<TokenPiece>& pieces() const { return pieces_; }
  /// From then on no token counts that is not below `vocabulary`. Reads everything, unless no token
  /// of the width can be too great. Throws Error naming source and byte of the first that is.
  void LimitTo(int vocabulary);

  /// Tokens [start, start + count), which must exist, to `to`. Throws Error naming the source if
  /// they cannot be read, or are beyond the limit: a file may have been cut short or replaced.
  void Copy(int64_t start, int64_t count, Token* to) const;
  /// All of them.
  std::vector<Token> Tokens() const;
  /// Tokens [begin, end), where they lie.
  TokenSequence Part(int64_t begin, int64_t end) const;

 private:
  void CheckLimit(const TokenPiece& piece, int64_t from, std::span<const Token> tokens) const;

  std::vector<TokenPiece> pieces_;
  std::vector<int64_t> starts_;  ///< of each piece within the sequence
  int64_t size_ = 0;
  int vocabulary_ = kMostTokens;
};

/// SHA-256 over the number of tokens and all of up to 16,777,216; of more, over 4,096 evenly spaced
/// blocks of 4,096: a large text is not read as a whole.
std::string Fingerprint(const TokenSequence& tokens);

}  // namespace pipelag
