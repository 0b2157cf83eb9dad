#include "models/schedule/facts.h"

#include <algorithm>
#include <numeric>

#include "models/error.h"

namespace pipelag {

Ratio::Ratio(int64_t numerator_in, int64_t denominator_in) {
  CHECK(denominator_in > 0);
  const int64_t common = std::gcd(numerator_in, denominator_in);
  numerator = numerator_in / common;
  denominator = denominator_in / common;
}

std::string_view QuantityName(Quantity quantity) {
  switch (quantity) {
    case Quantity::kIdleOfMakespan:
      return "idle of makespan";
    case Quantity::kIdleOfSpan:
      return "idle of span";
    case Quantity::kSteadyIdle:
      return "idle in steady state";
    case Quantity::kInFlight:
      return "in flight";
    case Quantity::kWeightVersions:
      return "weight versions";
    case Quantity::kGradientDelay:
      return "gradient delay";
    case Quantity::kGradientDelayMin:
      return "gradient delay, least";
  }
  CHECK(false);
}

void AddFlushFacts(std::vector<Fact>& facts) {
  facts.push_back({Quantity::kWeightVersions, "1", {1}});
  facts.push_back({Quantity::kGradientDelay, "0", {0}});
}

std::vector<Quantity> WithoutFact(const std::vector<Fact>& facts, bool flushes) {
  std::vector<Quantity> missing;
  for (const Quantity quantity :
       {flushes ? Quantity::kIdleOfMakespan : Quantity::kSteadyIdle, Quantity::kInFlight,
        Quantity::kWeightVersions, Quantity::kGradientDelay}) {
    const bool known = std::any_of(facts.begin(), facts.end(),
                                   [&](const Fact& fact) { return fact.quantity == quantity; });
    if (!known) missing.push_back(quantity);
  }
  return missing;
}

}  // namespace pipelag
