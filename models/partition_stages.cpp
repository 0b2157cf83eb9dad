// What the parts of each stage come to, and splits by hand.
#include <algorithm>

#include "models/error.h"
#include "models/partition.h"

namespace pipelag {
namespace {

template <class Of>
auto Sum(const std::vector<NetworkPart>& parts, const LayerRange& range, const Of& of) {
  auto sum = of(parts[static_cast<size_t>(range.first)]);
  for (int i = range.first + 1; i < range.last; ++i) sum += of(parts[static_cast<size_t>(i)]);
  return sum;
}

}  // namespace

Costs StageCosts(const std::vector<NetworkPart>& parts, const std::vector<LayerRange>& stages) {
  const bool split = std::all_of(parts.begin(), parts.end(), [](const NetworkPart& part) {
    return part.backward_input + part.backward_weight == part.backward;
  });
  Costs costs;
  for (const LayerRange& range : stages) {
    const auto add = [&](std::vector<Nanoseconds>& times, Nanoseconds NetworkPart::*time) {
      times.push_back(Sum(parts, range, [&](const NetworkPart& part) { return part.*time; }));
    };
    add(costs.forward, &NetworkPart::forward);
    add(costs.backward, &NetworkPart::backward);
    if (!split) continue;
    add(costs.backward_input, &NetworkPart::backward_input);
    add(costs.backward_weight, &NetworkPart::backward_weight);
  }
  costs.update.resize(stages.size());
  for (const Bytes message : CutMessages(parts, stages)) {
    costs.activation_bytes = std::max(costs.activation_bytes, message);
  }
  return costs;
}

MemorySizes StageSizes(const std::vector<NetworkPart>& parts,
                       const std::vector<LayerRange>& stages) {
  const std::vector<Bytes> messages = CutMessages(parts, stages);
  MemorySizes sizes;
  for (size_t s = 0; s < stages.size(); ++s) {
    const auto sum = [&](Bytes StageMemory::*size) {
      return Sum(parts, stages[s], [&](const NetworkPart& part) { return part.memory.*size; });
    };
    StageMemory stage{.weights = sum(&StageMemory::weights),
                      .gradients = sum(&StageMemory::gradients),
                      .optimizer = sum(&StageMemory::optimizer),
                      .activation = sum(&StageMemory::activation),
                      .freed_at_input = sum(&StageMemory::freed_at_input)};
    int blocks = 0;
    for (int i = stages[s].first; i < stages[s].last; ++i) {
      const NetworkPart& part = parts[static_cast<size_t>(i)];
      stage.workspace = std::max(stage.workspace, part.memory.workspace);
      blocks += part.blocks;
    }
    stage.workspace +=
        Sum(parts, stages[s], [](const NetworkPart& part) { return part.gathered; }) /
        std::max(1, blocks);
    if (s > 0) stage.message = messages[s - 1];
    if (s < messages.size()) stage.message = std::max(stage.message, messages[s]);
    sizes.stages.push_back(stage);
  }
  return sizes;
}

std::vector<Bytes> CutMessages(const std::vector<NetworkPart>& parts,
                               const std::vector<LayerRange>& stages) {
  std::vector<Bytes> messages;
  for (size_t s = 0; s + 1 < stages.size(); ++s) {
    messages.push_back(parts[static_cast<size_t>(stages[s].last - 1)].memory.message);
  }
  return messages;
}

std::vector<LayerRange> PartitionByCounts(const std::vector<NetworkPart>& parts,
                                          const std::vector<int>& counts) {
  std::vector<int> layers;  // part of each layer
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].layer) layers.push_back(static_cast<int>(i));
  }
  const auto count = static_cast<int>(parts.size());
  std::vector<int> with_layers = counts;
  const bool first_alone = counts.size() > 1 && counts.front() == 0 && !parts.front().layer;
  if (first_alone) with_layers.erase(with_layers.begin());
  const bool last_alone = with_layers.size() > 1 && counts.back() == 0 && !parts.back().layer;
  if (last_alone) with_layers.pop_back();
  std::vector<LayerRange> ranges;
  for (const LayerRange& range : SplitLayers(static_cast<int>(layers.size()), with_layers)) {
    const bool last = range.last == static_cast<int>(layers.size());
    ranges.push_back({ranges.empty() ? 0 : ranges.back().last,
                      last ? count : layers[static_cast<size_t>(range.last)]});
  }
  if (first_alone) {
    ranges.front().first = layers.front();
    ranges.insert(ranges.begin(), {0, layers.front()});
  }
  if (last_alone) {
    ranges.back().last = layers.back() + 1;
    ranges.push_back({layers.back() + 1, count});
  }
  return ranges;
}

std::vector<int> LayerCounts(const std::vector<NetworkPart>& parts,
                             const std::vector<LayerRange>& stages) {
  std::vector<int> counts;
  for (const LayerRange& range : stages) {
    counts.push_back(Sum(parts, range, [](const NetworkPart& part) { return part.layer ? 1 : 0; }));
  }
  return counts;
}

}  // namespace pipelag
