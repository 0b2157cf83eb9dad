// The table of corrections: one line per name. Knows how each is made, nothing of what it computes.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "models/error.h"
#include "models/names.h"
#include "runtime/correction/basis_rotation.h"
#include "runtime/correction/correction.h"
#include "runtime/correction/dc_asgd.h"
#include "runtime/correction/error_feedback.h"
#include "runtime/correction/pipemare.h"
#include "runtime/correction/rate_damping.h"
#include "runtime/correction/weight_prediction.h"

namespace pipelag {
namespace {

struct Parts {
  const OptimizerOptions& optimizer;
  const CorrectionOptions& correction;
  const StageLayout& layout;
  StageDelay delay;
};

std::unique_ptr<Optimizer> None(const Parts& parts) {
  return MakeOptimizer(parts.optimizer, parts.layout);
}

template <class Kind, auto... extra>
std::unique_ptr<Optimizer> Around(const Parts& parts) {
  return std::make_unique<Kind>(parts.correction, MakeOptimizer(parts.optimizer, parts.layout),
                                parts.delay, extra...);
}

std::unique_ptr<Optimizer> Instead(const Parts& parts) {
  return std::make_unique<BasisRotation>(parts.optimizer, parts.layout);
}

struct Entry {
  const char* name;
  std::unique_ptr<Optimizer> (*make)(const Parts&);
  bool reads_weights_taken_at = false;
};

constexpr Entry kCorrections[] = {
    {"none", &None},
    {"error-feedback", &Around<ErrorFeedback>},
    {"weight-prediction", &Around<WeightPrediction>},
    {"dc-asgd", &Around<DcAsgd, false>, true},
    {"dc-asgd-adaptive", &Around<DcAsgd, true>, true},
    {"pipemare", &Around<PipeMare>},
    {"rate-damping", &Around<RateDamping>},
    {"basis-rotation", &Instead},
};

}  // namespace

std::unique_ptr<Optimizer> MakeCorrected(const OptimizerOptions& optimizer,
                                         const CorrectionOptions& correction,
                                         const StageLayout& layout, StageDelay delay) {
  std::vector<std::string_view> names;
  for (const Entry& entry : kCorrections) {
    if (correction.name == entry.name) return entry.make({optimizer, correction, layout, delay});
    names.emplace_back(entry.name);
  }
  throw Error(fmt::format("there is no correction \"{}\"; did you mean \"{}\"?", correction.name,
                          Nearest(correction.name, names)));
}

bool ReadsWeightsTakenAt(const CorrectionOptions& correction) {
  const auto* const entry =
      std::find_if(std::begin(kCorrections), std::end(kCorrections),
                   [&](const Entry& known) { return known.name == correction.name; });
  return entry != std::end(kCorrections) && entry->reads_weights_taken_at &&
         correction.strength != 0.0f;
}

std::vector<std::string> CorrectionNames() {
  std::vector<std::string> names;
  for (const Entry& entry : kCorrections) names.emplace_back(entry.name);
  return names;
}

}  // namespace pipelag
