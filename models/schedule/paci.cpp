// PACI: no flush and no stash. Every action reads the newest weights and every m micro-batches are
// followed by an update, so the forward and the backward of a micro-batch may see different
// versions.
#include <fmt/format.h>

#include "models/schedule/endless.h"

namespace pipelag {

Schedule GeneratePaci(const GeneratorOptions& options) {
  if (options.norm || options.barrier) {
    throw Error(fmt::format("paci cannot wait for {}: it would undo the schedule",
                            options.norm ? "a global gradient norm (--clip-norm)"
                                         : "a global barrier (--flush-barrier)"));
  }
  return UpdateForever("paci", WeightPolicy::kLatest, EndlessBody(options), false);
}

}  // namespace pipelag
