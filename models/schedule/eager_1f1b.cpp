// Eager 1F1B (Zhuang et al., "On Optimizing the Communication of Model Parallelism", MLSys 2023):
// 1F1B with a flush and, unless told otherwise, twice the warm-up, so that messages under way hold
// nobody up; it costs as many more activations.
#include "models/schedule/endless.h"

namespace pipelag {

Schedule GenerateEager1F1B(const GeneratorOptions& options) {
  return CutToOneStep("eager-1f1b", Endless1F1B(options, 2));
}

std::vector<Fact> FactsOfEager1F1B(const GeneratorOptions& options) {
  return FactsOfFlushing1F1B(options, 2);
}

}  // namespace pipelag
