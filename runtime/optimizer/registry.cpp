// The table of optimizers: one line per name. Knows how each is made, nothing of what it computes.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <string_view>

#include "models/error.h"
#include "runtime/optimizer/adamw.h"
#include "runtime/optimizer/muon.h"
#include "runtime/optimizer/optimizer.h"
#include "runtime/optimizer/sgd.h"

namespace pipelag {
namespace {

template <class Kind>
std::unique_ptr<Optimizer> Make(const OptimizerOptions& options, const StageLayout& layout) {
  return std::make_unique<Kind>(options, layout);
}

struct Entry {
  const char* name;
  std::unique_ptr<Optimizer> (*make)(const OptimizerOptions&, const StageLayout&);
};

constexpr Entry kOptimizers[] = {
    {"adamw", &Make<AdamW>},
    {"muon", &Make<Muon>},
    {"sgd", &Make<Sgd>},
};

/// Letters to insert, delete or replace (Levenshtein).
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

}  // namespace

std::unique_ptr<Optimizer> MakeOptimizer(const OptimizerOptions& options,
                                         const StageLayout& layout) {
  for (const Entry& entry : kOptimizers) {
    if (options.name == entry.name) return entry.make(options, layout);
  }
  const auto nearest = std::min_element(
      std::begin(kOptimizers), std::end(kOptimizers), [&](const Entry& a, const Entry& b) {
        return EditDistance(options.name, a.name) < EditDistance(options.name, b.name);
      });
  throw Error(fmt::format("there is no optimizer \"{}\"; did you mean \"{}\"?", options.name,
                          nearest->name));
}

std::vector<std::string> OptimizerNames() {
  std::vector<std::string> names;
  for (const Entry& entry : kOptimizers) names.emplace_back(entry.name);
  return names;
}

}  // namespace pipelag
