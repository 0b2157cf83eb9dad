#include "runtime/data/token_sequence.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "models/error.h"
#include "runtime/sha256.h"

namespace pipelag {

static_assert(std::endian::native == std::endian::little, "tokens are read as they lie in files");

namespace {

/// Whether a token of the piece can be none of the vocabulary.
bool CanExceed(const TokenPiece& piece, int vocabulary) {
  return vocabulary < (piece.width == 1 ? 256 : kMostTokens);
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
    const std::span<Token> tokens(to, static_cast<size_t>(here));
    // Bytes of a text lie in the second half first: no token is written over one yet to come.
    const std::span<std::byte> bytes =
        std::as_writable_bytes(tokens).last(tokens.size() * static_cast<size_t>(piece.width));
    piece.read(piece.offset + from * piece.width, bytes);
    if (piece.width == 1) {
      for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<Token>(bytes[i]);
    }
    CheckLimit(piece, from, tokens);
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
  part.vocabulary_ = vocabulary_;
  for (size_t k = 0; k < pieces_.size(); ++k) {
    const int64_t from = std::max(begin, starts_[k]);
    const int64_t to = std::min(end, starts_[k] + pieces_[k].count);
    if (from >= to) continue;
    TokenPiece piece = pieces_[k];
    piece.offset += (from - starts_[k]) * piece.width;
    piece.count = to - from;
    part.Append(std::move(piece));
  }
  return part;
}

void TokenSequence::LimitTo(int vocabulary) {
  vocabulary_ = vocabulary;
  constexpr int64_t kBlock = 1 << 16;
  std::vector<Token> block(static_cast<size_t>(std::min(kBlock, size_)));
  for (size_t k = 0; k < pieces_.size(); ++k) {
    if (!CanExceed(pieces_[k], vocabulary_)) continue;
    for (int64_t at = 0; at < pieces_[k].count; at += kBlock) {
      Copy(starts_[k] + at, std::min(kBlock, pieces_[k].count - at), block.data());
    }
  }
}

void TokenSequence::CheckLimit(const TokenPiece& piece, int64_t from,
                               std::span<const Token> tokens) const {
  if (!CanExceed(piece, vocabulary_)) return;
  Token greatest = 0;
  for (const Token token : tokens) greatest = std::max(greatest, token);
  if (greatest < vocabulary_) return;
  const auto first = std::find_if(tokens.begin(), tokens.end(),
                                  [this](Token token) { return token >= vocabulary_; });
  throw Error(fmt::format("{}: token {} at byte {} is not below --vocabulary {}", piece.source,
                          *first, piece.offset + (from + (first - tokens.begin())) * piece.width,
                          vocabulary_));
}

std::string Fingerprint(const TokenSequence& tokens) {
  constexpr int64_t kBlocks = 4096;
  constexpr int64_t kBlock = 4096;
  const int64_t size = tokens.size();
  const int64_t block = std::min(kBlock, size);
  // Evenly spaced from the first token to the last: without a gap if they could hold all.
  const int64_t blocks = std::min(kBlocks, (size + kBlock - 1) / kBlock);
  std::vector<Token> buffer(static_cast<size_t>(block));
  Sha256Sum digest;
  digest.Add(&size, sizeof size);
  for (int64_t k = 0; k < blocks; ++k) {
    tokens.Copy((size - block) * k / std::max(blocks - 1, int64_t{1}), block, buffer.data());
    digest.Add(buffer.data(), buffer.size() * sizeof(Token));
  }
  return digest.Finish();
}

}  // namespace pipelag
