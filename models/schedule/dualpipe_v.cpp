// DualPipeV (DeepSeek's dualpipev.py, after Sea AI Lab's "cut in half" of DualPipe, 2025): the
// order of DualPipe on half as many ranks, each with two chunks in a V, and every weight held once.
#include <fmt/format.h>

#include "models/schedule/bidirectional.h"

namespace pipelag {

Schedule GenerateDualPipeV(const GeneratorOptions& options) {
  const int p = options.ranks;
  if (options.microbatches < 2 * p) {
    throw Error(fmt::format(
        "dualpipe-v needs at least {} micro-batches (twice the ranks), not {} (--microbatches)",
        2 * p, options.microbatches));
  }
  Schedule schedule = VPipeline("dualpipe-v", options);
  for (int rank = 0; rank < p; ++rank) {
    schedule.body[static_cast<size_t>(rank)] = BidirectionalOrder(
        rank, p, options.microbatches - 2 * p + rank + 1, {{rank, 0}, {2 * p - 1 - rank, 0}});
  }
  AppendUpdates(schedule);
  return schedule;
}

/// As of DualPipe, with twice as many stages as ranks.
std::vector<Fact> FactsOfDualPipeV(const GeneratorOptions& options) {
  const int64_t p = options.ranks;
  const int64_t m = options.microbatches;
  std::vector<Fact> facts = {
      {Quantity::kIdleOfMakespan, "(p − 1) / (3m + p − 1)", {{p - 1, 3 * m + p - 1}}},
      {Quantity::kInFlight, "2p + 1", {2 * p + 1}}};
  AddFlushFacts(facts);
  return facts;
}

}  // namespace pipelag
