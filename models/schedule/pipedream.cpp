// PipeDream (Narayanan et al., SOSP 2019): no flush, an update every m micro-batches, classically m
// = 1; each stage keeps the weights a batch began with until its backward, so early stages are
// later by more versions. With vertical sync all stages use the version of the first.
#include <fmt/format.h>

#include "models/schedule/endless.h"

namespace pipelag {

Schedule GeneratePipeDream(const GeneratorOptions& options) {
  if (options.norm || options.barrier) {
    throw Error(fmt::format("pipedream cannot wait for {}: it would undo the schedule",
                            options.norm ? "a global gradient norm (--clip-norm)"
                                         : "a global barrier (--flush-barrier)"));
  }
  return UpdateForever("pipedream",
                       options.vertical_sync ? WeightPolicy::kVerticalSync : WeightPolicy::kStashed,
                       EndlessBody(options), false);
}

}  // namespace pipelag
