#include "models/names.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "models/error.h"

namespace pipelag {
namespace {

/// Letters to insert, delete or replace (Levenshtein).
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string_view Nearest(std::string_view name, std::span<const std::string_view> known) {
  CHECK(!known.empty());
  // Half a word is most often the beginning of what was meant.
  const auto begun = std::find_if(known.begin(), known.end(), [&](std::string_view candidate) {
    return name.size() >= 3 && candidate.starts_with(name);
  });
  if (begun != known.end()) return *begun;
  return *std::min_element(known.begin(), known.end(), [&](std::string_view a, std::string_view b) {
    return EditDistance(name, a) < EditDistance(name, b);
  });
}

}  // namespace pipelag
