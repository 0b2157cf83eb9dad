#include "runtime/data/corpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "models/error.h"
#include "models/file.h"

namespace pipelag {

Corpus CutCorpus(std::string source, const std::vector<uint8_t>& bytes, int sequence) {
  if (bytes.empty()) throw Error(fmt::format("{} is empty: there is nothing to train on", source));
  const size_t train = bytes.size() / 10 * 9 + bytes.size() % 10 * 9 / 10;
  const size_t shorter = std::min(train, bytes.size() - train);
  if (shorter < static_cast<size_t>(sequence) + 1) {
    throw Error(
        fmt::format("{} has {} bytes: its first 90 % and its last 10 % must each hold {} bytes, "
                    "one sequence and "
                    "the byte after it",
                    source, bytes.size(), sequence + 1));
  }
  const auto middle = bytes.begin() + static_cast<std::ptrdiff_t>(train);
  return {std::move(source), {bytes.begin(), middle}, {middle, bytes.end()}, std::nullopt};
}

Corpus LoadText(const std::filesystem::path& file, int sequence) {
  const std::string text = ReadFile(file);
  return CutCorpus(file.string(), {text.begin(), text.end()}, sequence);
}

}  // namespace pipelag
