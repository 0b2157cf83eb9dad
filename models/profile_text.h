// Lines of tables that people and profilers write, read with the file and line named for whatever
// is wrong. Knows no columns.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "models/error.h"
#include "models/units.h"

namespace pipelag {

/// Where a line stands, for errors.
struct TextPlace {
  const std::filesystem::path& file;
  size_t line = 0;  ///< from 1

  [[noreturn]] void Fail(const std::string& what) const {
    throw Error(fmt::format("{}:{}: {}", file.string(), line, what));
  }
};

inline std::string_view Trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  const size_t first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

inline std::vector<std::string_view> SplitAt(std::string_view text, std::string_view separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + separator.size());
  }
}

/// A decimal number that is not negative, times `scale`, to the nearest whole number.
inline int64_t ReadQuantity(const TextPlace& place, std::string_view what, std::string_view text,
                            double scale) {
  constexpr double kMost = 1e15;
  double value = 0;
  try {
    value = ParseDecimal(Trimmed(text));
  } catch (const Error& error) {
    place.Fail(fmt::format("{}: {}", what, error.what()));
  }
  if (value < 0) place.Fail(fmt::format("{}: '{}' is negative", what, Trimmed(text)));
  if (value * scale > kMost) place.Fail(fmt::format("{}: '{}' is too much", what, Trimmed(text)));
  return std::llround(value * scale);
}

}  // namespace pipelag
