#include "models/cost/network_parts.h"

#include <fmt/format.h>

namespace pipelag {

std::vector<NetworkPart> BlocksAsParts(const Transformer& model, const Machine& machine,
                                       const RunLayout& layout, const Efficiency& efficiency) {
  RunLayout one_each = layout;
  one_each.pipeline = model.layers();
  one_each.chunks = 1;
  one_each.split.clear();
  Efficiency free = efficiency;
  free.microbatch_overhead = 0;
  const Estimate estimate = EstimateRun(model, machine, one_each, free);
  std::vector<NetworkPart> parts;
  for (size_t block = 0; block < model.blocks.size(); ++block) {
    parts.push_back({.name = fmt::format("block {}", block),
                     .forward = estimate.costs.forward[block],
                     .backward = estimate.costs.backward[block],
                     .backward_input = estimate.costs.backward_input[block],
                     .backward_weight = estimate.costs.backward_weight[block],
                     .memory = estimate.memory.stages[block]});
  }
  return parts;
}

}  // namespace pipelag
