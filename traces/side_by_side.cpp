#include "traces/side_by_side.h"

#include <numeric>

#include "models/error.h"

namespace pipelag {
namespace {

int64_t Sum(const std::vector<Nanoseconds>& times) {
  return std::accumulate(times.begin(), times.end(), Nanoseconds{0}).count();
}

int64_t SumOfBackwards(const Costs& costs, bool fused) {
  return fused ? Sum(costs.backward) : Sum(costs.backward_input) + Sum(costs.backward_weight);
}

__extension__ using Wide = __int128;

struct Factor {
  int64_t running = 1;
  int64_t alone = 1;

  void Apply(std::vector<Nanoseconds>& times) const {
    for (Nanoseconds& time : times) {
      const auto product = static_cast<Wide>(time.count()) * running;
      time = Nanoseconds{static_cast<int64_t>((product + alone - 1) / alone)};
    }
  }
};

}  // namespace

Costs SideBySide(const Costs& alone, const Costs& reference_alone, const Costs& reference) {
  const bool fused = !reference.backward.empty() && !reference_alone.backward.empty();
  const Factor forward{Sum(reference.forward), Sum(reference_alone.forward)};
  const Factor backward{SumOfBackwards(reference, fused), SumOfBackwards(reference_alone, fused)};
  Factor update{Sum(reference.update), Sum(reference_alone.update)};
  if (update.alone == 0) update = {};
  CHECK(forward.alone > 0 && backward.alone > 0);
  Costs costs = alone;
  forward.Apply(costs.forward);
  backward.Apply(costs.backward);
  backward.Apply(costs.backward_input);
  backward.Apply(costs.backward_weight);
  update.Apply(costs.update);
  costs.activation_bytes = reference.activation_bytes;
  costs.p2p_bandwidth = reference.p2p_bandwidth;
  costs.p2p_latency = reference.p2p_latency;
  costs.source = alone.source + ", slowed as those " + reference.source;
  return costs;
}

}  // namespace pipelag
