#include "models/schedule/warm_up.h"

#include <algorithm>

namespace pipelag {

WarmUpProposal ProposeWarmUp(const GivenCosts& costs) {
  const size_t stages = costs.forward.size();
  CHECK(stages > 0 && costs.backward_input.size() == stages &&
        costs.backward_weight.size() == stages);
  std::vector<int64_t> work;
  for (size_t s = 0; s < stages; ++s) {
    work.push_back(costs.forward[s] + costs.backward_input[s] + costs.backward_weight[s]);
  }
  const int64_t pace = *std::max_element(work.begin(), work.end());
  WarmUpProposal proposal{std::vector<int>(stages, 0)};
  if (pace == 0) return proposal;  // no pace to keep
  for (size_t s = stages - 1; s-- > 0;) {
    int64_t way = work[s];
    int64_t least = 0;
    for (size_t q = s + 1; q < stages; ++q) {
      way += work[q] + 2 * costs.latency;
      const int64_t ahead = (way + pace - 1) / pace - 1;  // of stage q
      const auto hops = static_cast<int64_t>(q - s);
      least = std::max(least, proposal.warmup[q] + ahead);
      proposal.slope = std::max(proposal.slope, static_cast<int>((ahead + hops - 1) / hops));
    }
    proposal.warmup[s] = static_cast<int>(least);
  }
  return proposal;
}

std::optional<WarmUpProposal> WarmUpThatHides(const Schedule& schedule, const GivenCosts& costs) {
  const auto generator = std::find_if(Generators().begin(), Generators().end(),
                                      [&](const Generator& g) { return g.name == schedule.name; });
  const bool takes_warm_up =
      generator != Generators().end() && (generator->uses & Generator::kWarmUp) != 0;
  if (!takes_warm_up || schedule.placed_stages() != schedule.ranks || costs.latency == 0) {
    return std::nullopt;
  }
  WarmUpProposal proposal = ProposeWarmUp(costs);
  if (WarmUpForwards(schedule) >= proposal.warmup.front()) return std::nullopt;
  return proposal;
}

}  // namespace pipelag
