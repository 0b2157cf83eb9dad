#include "runtime/data/corpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "models/error.h"
#include "models/mapped_file.h"

namespace pipelag {
namespace {

constexpr size_t kHeaderNumbers = 256;
constexpr size_t kHeaderBytes = kHeaderNumbers * sizeof(int32_t);
constexpr int32_t kTokensMagic = 20240520;
constexpr int32_t kTokensVersion = 1;
/// Files of llm.c that hold tokens of another width or something else.
constexpr int32_t kOtherMagics[] = {20240326, 20240327, 20240328, 20240522, 20240527, 20240801};

int32_t NumberAt(std::span<const std::byte> bytes, size_t index) {
  int32_t number = 0;
  std::memcpy(&number, bytes.data() + index * sizeof number, sizeof number);
  return number;
}

const char* UnitOf(const Corpus& corpus) { return corpus.bytes ? "byte" : "token"; }

void CheckLongEnough(const Corpus& corpus, const TokenSequence& part, const std::string& what,
                     int sequence) {
  if (part.size() > sequence) return;
  throw Error(fmt::format("{}: {} {}s, but one sequence and the {} after it are {}", what,
                          part.size(), UnitOf(corpus), UnitOf(corpus), sequence + 1));
}

Corpus Cut(Corpus corpus, const TokenSequence& all, int sequence) {
  const int64_t size = all.size();
  if (size == 0) {
    throw Error(fmt::format("{} is empty: there is nothing to train on", corpus.source));
  }
  const int64_t train = size / 10 * 9 + size % 10 * 9 / 10;
  if (std::min(train, size - train) < sequence + 1) {
    throw Error(fmt::format(
        "{} has {} {}s: its first 90 % and its last 10 % must each hold {} {}s, "
        "one sequence and the {} after it",
        corpus.source, size, UnitOf(corpus), sequence + 1, UnitOf(corpus), UnitOf(corpus)));
  }
  corpus.train = all.Part(0, train);
  corpus.validation = all.Part(train, size);
  return corpus;
}

bool HoldsText(const TokenSequence& tokens) {
  return tokens.size() > 0 && tokens.pieces().front().width == 1;
}

/// All of one kind, one behind the other.
TokenSequence OpenAll(const std::vector<std::string>& files, std::optional<bool>& text) {
  TokenSequence all;
  for (const std::string& file : files) {
    const TokenSequence one = OpenTokens(file);
    if (one.size() > 0) {
      if (text && *text != HoldsText(one)) {
        throw Error(fmt::format("{}: holds {}, but the files before it hold {}", file,
                                *text ? "tokens" : "text", *text ? "text" : "tokens"));
      }
      text = HoldsText(one);
    }
    for (const TokenPiece& piece : one.pieces()) all.Append(piece);
  }
  return all;
}

}  // namespace

Corpus CutCorpus(std::string source, const std::vector<uint8_t>& bytes, int sequence) {
  const auto owner = std::make_shared<const std::vector<uint8_t>>(bytes);
  TokenSequence all;
  all.Append({.owner = owner,
              .bytes = reinterpret_cast<const std::byte*>(owner->data()),
              .count = static_cast<int64_t>(owner->size()),
              .width = 1,
              .source = source});
  return Cut({.source = std::move(source), .train = {}, .validation = {}}, all, sequence);
}

TokenSequence OpenTokens(const std::filesystem::path& file) {
  const auto owner = std::make_shared<const MappedFile>(file);
  const std::span<const std::byte> bytes = owner->bytes();
  TokenPiece piece{.owner = owner,
                   .bytes = bytes.data(),
                   .count = static_cast<int64_t>(bytes.size()),
                   .width = 1,
                   .source = file.string()};
  TokenSequence tokens;
  if (file.extension() != ".bin") {
    tokens.Append(std::move(piece));
    return tokens;
  }
  piece.width = 2;
  piece.count = static_cast<int64_t>(bytes.size() / 2);
  const int32_t magic = bytes.size() >= sizeof(int32_t) ? NumberAt(bytes, 0) : 0;
  if (magic == kTokensMagic) {
    if (bytes.size() < kHeaderBytes) {
      throw Error(fmt::format("{}: is cut short within its header of {} bytes", file.string(),
                              kHeaderBytes));
    }
    if (NumberAt(bytes, 1) != kTokensVersion) {
      throw Error(fmt::format("{}: is of version {} of llm.c's files of tokens; {} is known",
                              file.string(), NumberAt(bytes, 1), kTokensVersion));
    }
    piece.count = NumberAt(bytes, 2);
    const int64_t expected = static_cast<int64_t>(kHeaderBytes) + 2 * piece.count;
    if (piece.count < 0 || static_cast<int64_t>(bytes.size()) != expected) {
      throw Error(fmt::format("{}: its header promises {} tokens, {} bytes in all, but it has {}",
                              file.string(), piece.count, expected, bytes.size()));
    }
    piece.offset = kHeaderBytes;
    piece.bytes += kHeaderBytes;
  } else if (std::find(std::begin(kOtherMagics), std::end(kOtherMagics), magic) !=
             std::end(kOtherMagics)) {
    throw Error(fmt::format("{}: is a file of llm.c, number {}, but none of 16-bit tokens ({})",
                            file.string(), magic, kTokensMagic));
  } else if (bytes.size() % 2 != 0) {
    throw Error(fmt::format("{}: {} bytes are no whole number of 16-bit tokens", file.string(),
                            bytes.size()));
  }
  tokens.Append(std::move(piece));
  return tokens;
}

Corpus LoadCorpus(const std::vector<std::string>& files, const std::vector<std::string>& validation,
                  int sequence) {
  std::optional<bool> text;
  const TokenSequence all = OpenAll(files, text);
  const std::string names = fmt::format("{}", fmt::join(files, ", "));
  Corpus corpus{.source = names, .train = {}, .validation = {}, .bytes = text.value_or(true)};
  if (validation.empty()) return Cut(std::move(corpus), all, sequence);
  corpus.train = all;
  corpus.validation = OpenAll(validation, text);
  CheckLongEnough(corpus, corpus.train, names, sequence);
  CheckLongEnough(corpus, corpus.validation, fmt::format("{}", fmt::join(validation, ", ")),
                  sequence);
  return corpus;
}

}  // namespace pipelag
