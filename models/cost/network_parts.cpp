#include "models/cost/network_parts.h"

#include <fmt/format.h>

namespace pipelag {

std::vector<NetworkPart> PartsOfNetwork(const Transformer& model, const Machine& machine,
                                        const RunLayout& layout, const Efficiency& efficiency) {
  const size_t count = model.blocks.size() + 2;
  RunLayout one_each = layout;
  one_each.pipeline = static_cast<int>(count);
  one_each.chunks = 1;
  one_each.split.assign(count, 1);
  one_each.split.front() = one_each.split.back() = 0;
  one_each.blocking_messages = false;  // there are not as many
  Efficiency free = efficiency;
  free.microbatch_overhead = 0;
  const Estimate estimate = EstimateRun(model, machine, one_each, free);
  // ZeRO-3 has one block of a stage whole: an average over the stage, beside the largest workspace.
  one_each.shard_states = std::min(one_each.shard_states, 2);
  const MemorySizes gathered_apart = EstimateRun(model, machine, one_each, free).memory;
  std::vector<NetworkPart> parts;
  for (size_t part = 0; part < count; ++part) {
    const std::string name = part == 0           ? "embedding"
                             : part + 1 == count ? "head"
                                                 : fmt::format("block {}", part - 1);
    StageMemory memory = estimate.memory.stages[part];
    const Bytes workspace = gathered_apart.stages[part].workspace;
    const Bytes gathered = memory.workspace - workspace;
    memory.workspace = workspace;
    parts.push_back({.name = name,
                     .forward = estimate.costs.forward[part],
                     .backward = estimate.costs.backward[part],
                     .backward_input = estimate.costs.backward_input[part],
                     .backward_weight = estimate.costs.backward_weight[part],
                     .memory = memory,
                     .gathered = gathered,
                     .blocks = part == 0 || part + 1 == count ? 0 : 1});
  }
  return parts;
}

std::vector<int> SplitOfBlocks(const std::vector<LayerRange>& stages) {
  std::vector<int> counts;
  for (const LayerRange& range : stages) counts.push_back(range.last - range.first);
  --counts.front();
  --counts.back();
  return counts;
}

}  // namespace pipelag
