// The table of optimizers: one line per name. Knows how each is made, nothing of what it computes.
#include <fmt/format.h>

#include <string_view>

#include "models/error.h"
#include "models/names.h"
#include "runtime/optimizer/adamw.h"
#include "runtime/optimizer/adan.h"
#include "runtime/optimizer/lion.h"
#include "runtime/optimizer/mars.h"
#include "runtime/optimizer/muon.h"
#include "runtime/optimizer/nadam.h"
#include "runtime/optimizer/normuon.h"
#include "runtime/optimizer/optimizer.h"
#include "runtime/optimizer/sgd.h"
#include "runtime/optimizer/soap.h"

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

// clang-format off
constexpr Entry kOptimizers[] = {
    {"adamw", &Make<AdamW>},
    {"nadam", &Make<NAdam>},
    {"adan", &Make<Adan>},
    {"lion", &Make<Lion>},
    {"mars", &Make<Mars>},
    {"soap", &Make<Soap>},
    {"muon", &Make<Muon>},
    {"normuon", &Make<NorMuon>},
    {"sgd", &Make<Sgd>},
    {"sgd-ema", &Make<SgdEma>},
};
// clang-format on

}  // namespace

std::unique_ptr<Optimizer> MakeOptimizer(const OptimizerOptions& options,
                                         const StageLayout& layout) {
  for (const Entry& entry : kOptimizers) {
    if (options.name == entry.name) return entry.make(options, layout);
  }
  std::vector<std::string_view> names;
  for (const Entry& entry : kOptimizers) names.emplace_back(entry.name);
  throw Error(fmt::format("there is no optimizer \"{}\"; did you mean \"{}\"?", options.name,
                          Nearest(options.name, names)));
}

std::vector<std::string> OptimizerNames() {
  std::vector<std::string> names;
  for (const Entry& entry : kOptimizers) names.emplace_back(entry.name);
  return names;
}

}  // namespace pipelag
