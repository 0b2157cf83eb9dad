// PipeDream (Narayanan et al., SOSP 2019): no flush, an update every m micro-batches, classically m
// = 1; each stage keeps the weights a batch began with until its backward, so early stages are
// later by more versions. With vertical sync all stages use the version of the first.
#include <fmt/format.h>

#include "models/schedule/endless.h"

namespace pipelag {

Schedule GeneratePipeDream(const GeneratorOptions& options) {
  RefuseGlobalWaits("pipedream", options);
  return UpdateForever("pipedream",
                       options.vertical_sync ? WeightPolicy::kVerticalSync : WeightPolicy::kStashed,
                       EndlessBody(options), false);
}

std::vector<Fact> FactsOfPipeDream(const GeneratorOptions& options) {
  std::vector<Fact> facts = FactsOfEndlessBody(options);
  const int64_t m = options.microbatches;
  const std::optional<OwnDelay> own = OwnDelayOf(options);
  if (!own) return facts;
  // With vertical sync all are as late as the first stage.
  const auto delay = [&](int s) {
    return CeilingOf(own->ahead[options.vertical_sync ? 0 : static_cast<size_t>(s)], m);
  };
  const std::string first = options.vertical_sync ? own->formula_of_first : own->formula;
  facts.push_back(
      {Quantity::kGradientDelay, fmt::format("⌈{} / m⌉", first), Each(options.ranks, delay)});
  if (!own->stashed_until_update) return facts;
  facts.push_back({Quantity::kWeightVersions, fmt::format("⌈{} / m⌉ + 1", first),
                   Each(options.ranks, [&](int s) { return delay(s) + 1; })});
  return facts;
}

}  // namespace pipelag
