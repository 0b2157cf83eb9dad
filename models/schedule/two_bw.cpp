// PipeDream-2BW (Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training", ICML 2021,
// arXiv 2006.09503): no flush, two weight versions, and every batch is differentiated on the
// weights of one update before. The order within is that of any schedule that can go on without
// end.
#include "models/schedule/endless.h"

namespace pipelag {

Schedule Generate2BW(const GeneratorOptions& options) {
  if (options.barrier) {
    throw Error("2bw has no flush, so it cannot have a flush barrier (--flush-barrier)");
  }
  return UpdateForever(
      "2bw", WeightPolicy::kDoubleBuffered, EndlessBody(options),
      options.late_update.value_or(options.reduction || options.norm || options.tied));
}

std::vector<Fact> FactsOf2BW(const GeneratorOptions& options) {
  std::vector<Fact> facts = FactsOfEndlessBody(options);
  if (options.norm || options.tied) {
    // What waiting for other stages costs depends on where the update stands and on the slack it
    // finds there.
    std::erase_if(facts, [](const Fact& f) { return f.quantity == Quantity::kSteadyIdle; });
  }
  facts.push_back({Quantity::kWeightVersions, "2", {2}});
  facts.push_back({Quantity::kGradientDelay, "1", {1}});
  return facts;
}

}  // namespace pipelag
