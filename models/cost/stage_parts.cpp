#include "models/cost/stage_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "models/cost/state_bytes.h"
#include "models/error.h"

namespace pipelag {
namespace {

struct Part {
  PartWork work;
  PartSeconds seconds;
};

void Put(const Part& part, StageParts& stage) {
  stage.seconds += part.seconds;
  stage.activation += part.work.activation;
  stage.held_for_weight += part.work.held_for_weight;
  stage.recompute_peak = std::max(stage.recompute_peak, part.work.recompute_peak);
  stage.parameters += part.work.parameters;
  stage.expert_parameters += part.work.expert_parameters;
  stage.recomputed_flops += part.work.RecomputedFlops();
  const std::vector<ParameterShape> tensors = TensorsOf(part.work);
  stage.tensors.insert(stage.tensors.end(), tensors.begin(), tensors.end());
}

std::vector<LayerRange> SplitOf(const Transformer& model, const RunLayout& layout) {
  const int stages = layout.pipeline * layout.chunks;
  if (layout.split.empty()) return SplitLayers(model.layers(), stages);
  if (static_cast<int>(layout.split.size()) != stages) {
    throw Error(fmt::format("the split names {} stages, but the layout has {}", layout.split.size(),
                            stages));
  }
  std::vector<LayerRange> ranges;
  int64_t first = 0;
  for (size_t s = 0; s < layout.split.size(); ++s) {
    const int blocks = layout.split[s];
    const bool outer = s == 0 || s + 1 == layout.split.size();
    if (blocks < (outer ? 0 : 1)) {
      throw Error(fmt::format("the split leaves stage {} with {} blocks", s, blocks));
    }
    const int64_t last = first + blocks;
    if (last > model.layers()) break;
    ranges.push_back({static_cast<int>(first), static_cast<int>(last)});
    first = last;
  }
  if (ranges.size() != layout.split.size() || first != model.layers()) {
    int64_t sum = 0;
    for (const int blocks : layout.split) sum += blocks;
    throw Error(
        fmt::format("the split adds up to {} blocks, but there are {}", sum, model.layers()));
  }
  return ranges;
}

}  // namespace

RunGroups GroupsOf(const RunLayout& layout) {
  const Sharding& sharding = layout.sharding;
  const int replica_stride = sharding.tensor * sharding.context;
  RunGroups groups;
  groups.stage.tensor = {sharding.tensor, 1};
  groups.stage.context = {sharding.context, sharding.tensor};
  const int cut = sharding.expert_tensor > 0 ? sharding.expert_tensor : sharding.tensor;
  groups.stage.expert = {sharding.expert, cut};
  groups.replicas = {sharding.context * layout.data, sharding.tensor};
  groups.expert_replicas = {std::max(1, replica_stride * layout.data / (cut * sharding.expert)),
                            cut * sharding.expert};
  return groups;
}

std::vector<StageParts> PartsOfStages(const Transformer& model, const Machine& machine,
                                      const RunLayout& layout, const Efficiency& efficiency) {
  const PartSetting setting{.machine = &machine,
                            .efficiency = &efficiency,
                            .precision = layout.precision,
                            .flash = layout.sharding.flash,
                            .overlap_tensor = layout.overlap_tensor,
                            .recompute = layout.sharding.recompute,
                            .groups = GroupsOf(layout).stage};
  const std::vector<LayerRange> split = SplitOf(model, layout);
  std::vector<StageParts> stages(split.size());
  const auto timed = [&](PartWork work) {
    const PartSeconds seconds = SecondsOf(work, setting);
    return Part{std::move(work), seconds};
  };
  Put(timed(EmbeddingWork(model, layout.sharding)), stages.front());
  const Block* known = nullptr;  // most networks repeat one block
  std::optional<Part> part;
  for (size_t s = 0; s < split.size(); ++s) {
    for (int layer = split[s].first; layer < split[s].last; ++layer) {
      const Block& block = model.blocks[static_cast<size_t>(layer)];
      if (known == nullptr || !(*known == block)) {
        part = timed(BlockWork(model, block, layout.sharding));
        known = &block;
      }
      Put(*part, stages[s]);
    }
    stages[s].blocks = split[s].last - split[s].first;
  }
  PartWork head = HeadWork(model, layout.sharding);
  if (stages.size() == 1) head.parameters -= head.tied_parameters;  // the embedding is there
  Put(timed(std::move(head)), stages.back());
  return stages;
}

}  // namespace pipelag
