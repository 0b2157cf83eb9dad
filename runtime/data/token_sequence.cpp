#include "runtime/data/token_sequence.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "models/error.h"
#include "runtime/sha256.h"

namespace pipelag {

static_assert(std::endian::native == std::endian::little, "tokens are read as they lie in files");

namespace {

/// The `index`-th token of a piece.
int64_t TokenAt(const TokenPiece& piece, int64_t index) {
  if (piece.width == 1) return static_cast<int64_t>(piece.bytes[index]);
  Token token = 0;
  std::memcpy(&token, piece.bytes + 2 * index, sizeof token);
  return token;
}

int64_t Greatest(const TokenPiece& piece) {
  int64_t greatest = 0;
  for (int64_t i = 0; i < piece.count; ++i) greatest = std::max(greatest, TokenAt(piece, i));
  return greatest;
}

}  // namespace

void TokenSequence::Append(TokenPiece piece) {
  CHECK(piece.width == 1 || piece.width == 2);
  if (piece.count == 0) return;
  starts_.push_back(size_);
  size_ += piece.count;
  pieces_.push_back(std::move(piece));
}

void TokenSequence::Copy(int64_t start, int64_t count, Token* to) const {
  CHECK(start >= 0 && count >= 0 && start + count <= size_);
  if (count == 0) return;
  auto k = static_cast<size_t>(std::upper_bound(starts_.begin(), starts_.end(), start) -
                               starts_.begin() - 1);
  while (count > 0) {
    const TokenPiece& piece = pieces_[k];
    const int64_t from = start - starts_[k];
    const int64_t here = std::min(count, piece.count - from);
    if (piece.width == 1) {
      const std::byte* bytes = piece.bytes + from;
      for (int64_t i = 0; i < here; ++i) to[i] = static_cast<Token>(bytes[i]);
    } else {
      std::memcpy(to, piece.bytes + 2 * from, 2 * static_cast<size_t>(here));
    }
    to += here;
    start += here;
    count -= here;
    ++k;
  }
}

std::vector<Token> TokenSequence::Tokens() const {
  std::vector<Token> tokens(static_cast<size_t>(size_));
  Copy(0, size_, tokens.data());
  return tokens;
}

TokenSequence TokenSequence::Part(int64_t begin, int64_t end) const {
  CHECK(begin >= 0 && begin <= end && end <= size_);
  TokenSequence part;
  for (size_t k = 0; k < pieces_.size(); ++k) {
    const int64_t from = std::max(begin, starts_[k]);
    const int64_t to = std::min(end, starts_[k] + pieces_[k].count);
    if (from >= to) continue;
    TokenPiece piece = pieces_[k];
    const int64_t skipped = (from - starts_[k]) * piece.width;
    piece.bytes += skipped;
    piece.offset += skipped;
    piece.count = to - from;
    part.Append(std::move(piece));
  }
  return part;
}

void CheckVocabulary(const TokenSequence& tokens, int vocabulary) {
  for (const TokenPiece& piece : tokens.pieces()) {
    if (vocabulary >= (piece.width == 1 ? 256 : kMostTokens)) continue;
    if (Greatest(piece) < vocabulary) continue;
    int64_t at = 0;
    while (TokenAt(piece, at) < vocabulary) ++at;
    throw Error(fmt::format("{}: token {} at byte {} is not below --vocabulary {}", piece.source,
                            TokenAt(piece, at), piece.offset + at * piece.width, vocabulary));
  }
}

std::string Fingerprint(const TokenSequence& tokens) {
  constexpr int64_t kBlocks = 64;
  constexpr int64_t kBlock = 2048;
  const int64_t block = std::min(kBlock, tokens.size());
  std::vector<Token> buffer(static_cast<size_t>(block));
  Sha256Sum digest;
  const int64_t size = tokens.size();
  digest.Add(&size, sizeof size);
  for (int64_t k = 0; k < kBlocks; ++k) {
    // From the first token to the last.
    tokens.Copy(k == kBlocks - 1 ? size - block : (size - block) / (kBlocks - 1) * k, block,
                buffer.data());
    digest.Add(buffer.data(), buffer.size() * sizeof(Token));
  }
  return digest.Finish();
}

}  // namespace pipelag
