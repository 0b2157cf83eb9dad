// PACI: no flush and no stash. Every action reads the newest weights and every m micro-batches are
// followed by an update, so the forward and the backward of a micro-batch may see different
// versions.
#include <fmt/format.h>

#include "models/schedule/endless.h"

namespace pipelag {

Schedule GeneratePaci(const GeneratorOptions& options) {
  RefuseGlobalWaits("paci", options);
  return UpdateForever("paci", WeightPolicy::kLatest, EndlessBody(options), false);
}

std::vector<Fact> FactsOfPaci(const GeneratorOptions& options) {
  std::vector<Fact> facts = FactsOfEndlessBody(options);
  const int64_t m = options.microbatches;
  facts.push_back({Quantity::kWeightVersions, "1", {1}});
  const std::optional<OwnDelay> own = OwnDelayOf(options);
  if (!own) return facts;
  const auto ahead = [&](int s) { return own->ahead[static_cast<size_t>(s)]; };
  facts.push_back({Quantity::kGradientDelay, fmt::format("⌈{} / m⌉", own->formula),
                   Each(options.ranks, [&](int s) { return CeilingOf(ahead(s), m); })});
  facts.push_back({Quantity::kGradientDelayMin, fmt::format("⌊{} / m⌋", own->formula),
                   Each(options.ranks, [&](int s) { return ahead(s) / m; })});
  return facts;
}

}  // namespace pipelag
