#include "models/cost/network_split.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "models/cost/network_parts.h"
#include "models/held_memory.h"

namespace pipelag {
namespace {

/// Parts of each stage: with the blocks the embedding in front and the head behind.
std::vector<LayerRange> PartsOf(const std::vector<int>& blocks) {
  std::vector<LayerRange> stages;
  int first = 0;
  for (const int count : blocks) {
    const int last = first + count + (first == 0 ? 1 : 0);
    stages.push_back({first, last});
    first = last;
  }
  ++stages.back().last;
  return stages;
}

NetworkSplit Assessed(const Estimate& estimate, std::vector<int> blocks, const Program& program) {
  const Schedule& schedule = program.schedule();
  const Costs& costs = estimate.costs;
  NetworkSplit split;
  Partition& partition = split.partition;
  partition.stages = PartsOf(blocks);
  split.blocks = std::move(blocks);
  partition.rank_time.resize(static_cast<size_t>(schedule.ranks));
  for (int placed = 0; placed < schedule.placed_stages(); ++placed) {
    const auto slice = static_cast<size_t>(schedule.SliceOf(placed));
    partition.rank_time[static_cast<size_t>(schedule.placement[static_cast<size_t>(placed)])] +=
        costs.forward[slice] + costs.backward[slice];
  }
  partition.bottleneck = *std::max_element(partition.rank_time.begin(), partition.rank_time.end());
  if (schedule.ranks > 1) {
    partition.bottleneck = std::max(partition.bottleneck,
                                    TransferTime(2 * costs.activation_bytes, costs.p2p_bandwidth));
  }
  return split;
}

std::vector<int> EvenBlocks(const Transformer& model, int stages) {
  std::vector<int> blocks;
  for (const LayerRange& range : SplitLayers(model.layers(), stages)) {
    blocks.push_back(range.last - range.first);
  }
  return blocks;
}

}  // namespace

NetworkSplit AssessNetworkSplit(const Transformer& model, const Machine& machine,
                                const RunLayout& layout, const Efficiency& efficiency,
                                const Program& program) {
  const Estimate estimate = EstimateRun(model, machine, layout, efficiency);
  return Assessed(
      estimate, layout.split.empty() ? EvenBlocks(model, program.schedule().stages) : layout.split,
      program);
}

NetworkSplit BestNetworkSplit(const Transformer& model, const Machine& machine, RunLayout layout,
                              const Efficiency& efficiency, const Program& program, Bytes limit) {
  constexpr int kMostTries = 4;
  const int stages = program.schedule().stages;
  const std::vector<NetworkPart> parts = PartsOfNetwork(model, machine, layout, efficiency);
  std::optional<HeldMemory> held;
  if (limit > 0) held.emplace(program);
  const auto assessed = [&](std::vector<int> blocks) {
    layout.split = blocks;
    const Estimate estimate = EstimateRun(model, machine, layout, efficiency);
    NetworkSplit split = Assessed(estimate, std::move(blocks), program);
    if (held) split.partition.rank_memory = held->PeaksOf(program, estimate.memory);
    return split;
  };
  const auto beyond = [&](const NetworkSplit& split) {
    const std::vector<Bytes>& memory = split.partition.rank_memory;
    return memory.empty() ? 0 : *std::max_element(memory.begin(), memory.end()) - limit;
  };
  RunLayout any = layout;
  any.split.clear();
  any.chunks = 1;  // links are the same, and a block for every stage is not needed
  PartitionSetting setting = PartitionSettingOf(
      program, EstimateRun(model, machine, any, efficiency).costs.p2p_bandwidth, limit);
  std::optional<NetworkSplit> even;
  if (stages <= model.layers()) even = assessed(EvenBlocks(model, stages));
  if (even && beyond(*even) > 0) even.reset();
  for (int tries = 0; tries < kMostTries && setting.memory_limit >= 0; ++tries) {
    Partition partition;
    try {
      partition = BestPartition(parts, setting);
    } catch (const Error&) {
      if (even) break;
      throw;
    }
    NetworkSplit found = assessed(SplitOfBlocks(partition.stages));
    if (beyond(found) > 0) {
      setting.memory_limit -= beyond(found);
      continue;
    }
    found.partition.proven = partition.proven;
    if (even && even->partition.bottleneck < found.partition.bottleneck) break;
    return found;
  }
  if (even) return *even;
  throw Error("no split was found whose stages fit the memory as they are in the end");
}

}  // namespace pipelag
