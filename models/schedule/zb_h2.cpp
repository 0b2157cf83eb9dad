// ZB-H2 (Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, there ZB2P): as ZB-H1 with twice
// the warm-up and W put off by 2s, which fills the flush where m ≥ 2p − 1; 2p − 1 activations
// everywhere.
#include "models/schedule/endless.h"

namespace pipelag {

EndlessOrder EndlessZbH2(const GeneratorOptions& options) {
  EndlessOrder order{LinearPipeline("zb-h2", options)};
  for (int s = 0; s < options.ranks; ++s) {
    order.pipeline.body[static_cast<size_t>(s)] = {
        MakeAction(ActionKind::kForward, s, 2 * (options.ranks - 1 - s)),
        MakeAction(ActionKind::kBackwardInput, s, 0),
        MakeAction(ActionKind::kBackwardWeight, s, -2 * s)};
  }
  return order;
}

Schedule GenerateZbH2(const GeneratorOptions& options) {
  return CutToOneStep("zb-h2", EndlessZbH2(options));
}

std::vector<Fact> FactsOfZbH2(const GeneratorOptions& options) {
  const int64_t p = options.ranks;
  const int64_t m = options.microbatches;
  std::vector<Fact> facts;
  if (m >= 2 * p - 1) {
    facts = {{Quantity::kIdleOfMakespan, "(p − 1) / (3m + p − 1)", {{p - 1, 3 * m + p - 1}}},
             {Quantity::kInFlight, "2p − 1", {2 * p - 1}}};
    if (!options.norm && !options.barrier && !options.tied)
      facts.push_back({Quantity::kIdleOfSpan, "0", {0}});
  }
  AddFlushFacts(facts);
  return facts;
}

std::vector<Fact> FactsOfEndlessZbH2(const GeneratorOptions& options) {
  return {{Quantity::kSteadyIdle, "0", {0}},
          {Quantity::kInFlight, "2p − 1", {2 * options.ranks - 1}}};
}

}  // namespace pipelag
