#include "runtime/data/corpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>

#include "models/error.h"
#include "models/input_file.h"

namespace pipelag {
namespace {

constexpr size_t kHeaderNumbers = 256;
constexpr int64_t kHeaderBytes = kHeaderNumbers * sizeof(int32_t);
constexpr int32_t kTokensMagic = 20240520;
constexpr int32_t kTokensVersion = 1;
/// Files of llm.c that hold tokens of another width or something else.
constexpr int32_t kOtherMagics[] = {20240326, 20240327, 20240328, 20240522, 20240527, 20240801};

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
  const auto read = [owner](int64_t at, std::span<std::byte> to) {
    std::memcpy(to.data(), owner->data() + at, to.size());
  };
  all.Append(
      {.read = read, .count = static_cast<int64_t>(owner->size()), .width = 1, .source = source});
  return Cut({.source = std::move(source), .train = {}, .validation = {}}, all, sequence);
}

TokenSequence OpenTokens(const std::filesystem::path& file) {
  const auto opened = std::make_shared<const InputFile>(file);
  const int64_t size = opened->size();
  TokenPiece piece{.read = [opened](int64_t at, std::span<std::byte> to) { opened->Read(at, to); },
                   .count = size,
                   .width = 1,
                   .source = file.string()};
  TokenSequence tokens;
  if (file.extension() != ".bin") {
    tokens.Append(std::move(piece));
    return tokens;
  }
  piece.width = 2;
  piece.count = size / 2;
  std::array<int32_t, kHeaderNumbers> header{};
  const auto known = static_cast<size_t>(std::min(size, kHeaderBytes));
  opened->Read(0, std::as_writable_bytes(std::span(header)).first(known));
  if (header[0] == kTokensMagic) {
    if (size < kHeaderBytes) {
      throw Error(fmt::format("{}: is cut short within its header of {} bytes", file.string(),
                              kHeaderBytes));
    }
    if (header[1] != kTokensVersion) {
      throw Error(fmt::format("{}: is of version {} of llm.c's files of tokens; {} is known",
                              file.string(), header[1], kTokensVersion));
    }
    piece.count = header[2];
    const int64_t expected = kHeaderBytes + 2 * piece.count;
    if (piece.count < 0 || size != expected) {
      throw Error(fmt::format("{}: its header promises {} tokens, {} bytes in all, but it has {}",
                              file.string(), piece.count, expected, size));
    }
    piece.offset = kHeaderBytes;
  } else if (std::find(std::begin(kOtherMagics), std::end(kOtherMagics), header[0]) !=
             std::end(kOtherMagics)) {
    throw Error(fmt::format("{}: is a file of llm.c, number {}, but none of 16-bit tokens ({})",
                            file.string(), header[0], kTokensMagic));
  } else if (size % 2 != 0) {
    throw Error(
        fmt::format("{}: {} bytes are no whole number of 16-bit tokens", file.string(), size));
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
