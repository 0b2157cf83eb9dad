// Aligned text: tables, short lists, figures. Must not know what the figures mean.
#include "tools/table.h"

#include <fmt/format.h>

#include <algorithm>

namespace pipelag {
namespace {

constexpr size_t kFew = 8;

/// What a terminal gives a text of UTF-8: one column for every byte that begins a letter.
size_t Columns(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

}  // namespace

std::string FormatTable(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], Columns(row[c]));
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t c = 0; c < row.size(); ++c) {
      const std::string blanks(widths[c] - Columns(row[c]), ' ');
      line += c == 0 ? row[c] + blanks : "  " + blanks + row[c];
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + '\n';
  }
  return text;
}

std::string FormatFew(std::span<const int64_t> values) {
  if (values.empty()) return "-";
  const auto [least, greatest] = std::minmax_element(values.begin(), values.end());
  if (*least == *greatest) return fmt::format("{}", *least);
  if (values.size() <= kFew) return fmt::format("{}", fmt::join(values, ","));
  return fmt::format("{}..{}", *least, *greatest);
}

std::string FormatFewShares(std::span<const double> values) {
  if (values.empty()) return "-";
  const auto [least, greatest] = std::minmax_element(values.begin(), values.end());
  if (*least == *greatest) return fmt::format("{:.4g}", *least);
  if (values.size() > kFew) return fmt::format("{:.4g}..{:.4g}", *least, *greatest);
  std::string text;
  for (const double value : values) {
    text += fmt::format("{}{:.4g}", text.empty() ? "" : ",", value);
  }
  return text;
}

std::string FormatRanges(std::span<const int> ascending) {
  std::string text;
  for (size_t i = 0; i < ascending.size();) {
    size_t last = i;
    while (last + 1 < ascending.size() && ascending[last + 1] == ascending[last] + 1) ++last;
    text += text.empty() ? "" : ",";
    text += last == i ? fmt::format("{}", ascending[i])
                      : fmt::format("{}-{}", ascending[i], ascending[last]);
    i = last + 1;
  }
  return text;
}

std::string Counted(int64_t count, std::string_view noun) {
  const std::string_view plural = count == 1 ? "" : noun.ends_with("ch") ? "es" : "s";
  return fmt::format("{} {}{}", count, noun, plural);
}

std::string FormatShare(double share) { return fmt::format("{:.2f} %", 100 * share); }

std::string FormatFlops(double flops) {
  constexpr std::string_view kPrefixes[] = {"", " K", " M", " G", " T", " P", " E"};
  if (flops == 0) return "0";
  size_t prefix = 0;
  while (flops >= 999.95 && prefix + 1 < std::size(kPrefixes)) {
    flops /= 1000;
    ++prefix;
  }
  return fmt::format("{:#.4g}{}", flops, kPrefixes[prefix]);
}

std::string FormatStepTime(StepTime time) {
  const std::string rounded = FormatDuration(time.RoundedUp());
  if (time.denominator == 1) return rounded;
  return fmt::format("{} (exactly {}/{} ns)", rounded, time.numerator, time.denominator);
}

}  // namespace pipelag
