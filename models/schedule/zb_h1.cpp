// ZB-H1 (Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, there ZB1P): 1F1B with the
// backward split; stage s puts off its W by s micro-batches, so that every stage holds p
// activations.
#include "models/schedule/endless.h"

namespace pipelag {

EndlessOrder EndlessZbH1(const GeneratorOptions& options) {
  EndlessOrder order{LinearPipeline("zb-h1", options)};
  for (int s = 0; s < options.ranks; ++s) {
    order.pipeline.body[static_cast<size_t>(s)] = {
        MakeAction(ActionKind::kForward, s, options.ranks - 1 - s),
        MakeAction(ActionKind::kBackwardInput, s, 0),
        MakeAction(ActionKind::kBackwardWeight, s, -s)};
  }
  return order;
}

Schedule GenerateZbH1(const GeneratorOptions& options) {
  return CutToOneStep("zb-h1", EndlessZbH1(options));
}

std::vector<Fact> FactsOfZbH1(const GeneratorOptions& options) {
  const int64_t p = options.ranks;
  const int64_t m = options.microbatches;
  std::vector<Fact> facts;
  if (m >= p) {
    const std::vector<Ratio> idle = {{p - 1, 3 * m + p - 1}};
    facts = {{Quantity::kIdleOfMakespan, "(p − 1) / (3m + p − 1)", idle},
             {Quantity::kInFlight, "p", {p}}};
    if (!options.norm && !options.barrier && !options.tied) {
      facts.push_back({Quantity::kIdleOfSpan, "(p − 1) / (3m + p − 1)", idle});
    }
  }
  AddFlushFacts(facts);
  return facts;
}

std::vector<Fact> FactsOfEndlessZbH1(const GeneratorOptions& options) {
  return {{Quantity::kSteadyIdle, "0", {0}}, {Quantity::kInFlight, "p", {options.ranks}}};
}

}  // namespace pipelag
