// Parts of a network against the stages they make.
#include "models/cost/network_parts.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "models/architecture/config.h"
#include "models/schedule/generators.h"

namespace pipelag {
namespace {

RunLayout LayoutOf(int pipeline) {
  RunLayout layout;
  layout.pipeline = pipeline;
  layout.data = 2;
  layout.microbatches = 4;
  layout.sharding.sequences = 8;  // long enough to hide what launches take the host
  layout.sharding.tokens = 2048;
  return layout;
}

TEST(NetworkParts, AddUpToTheStagesTheyMake) {
  const Transformer model = Gpt({.layers = 7, .hidden = 768, .heads = 12, .vocabulary = 50'000});
  const Machine machine = ReadMachine("dgx-a100");
  RunLayout layout = LayoutOf(3);
  const std::vector<NetworkPart> parts = PartsOfNetwork(model, machine, layout, {});
  ASSERT_EQ(parts.size(), 9u);
  const std::vector<LayerRange> ranges = {{0, 3}, {3, 6}, {6, 9}};
  layout.split = SplitOfBlocks(ranges);
  EXPECT_EQ(layout.split, (std::vector<int>{2, 3, 2}));
  const Estimate whole = EstimateRun(model, machine, layout, {});
  const Costs costs = StageCosts(parts, ranges);
  const MemorySizes sizes = StageSizes(parts, ranges);
  for (size_t s = 0; s < 3; ++s) {
    const StageMemory& stage = whole.memory.stages[s];
    EXPECT_LE(std::abs(sizes.stages[s].weights - stage.weights), 3);
    EXPECT_LE(std::abs(sizes.stages[s].optimizer - stage.optimizer), 5);
    EXPECT_EQ(sizes.stages[s].activation, stage.activation);
    EXPECT_EQ(sizes.stages[s].message, stage.message);
    const auto close = [](Nanoseconds sum, Nanoseconds stage_time) {
      return std::abs((sum - stage_time).count()) * 50 < stage_time.count();
    };
    EXPECT_TRUE(close(costs.forward[s], whole.costs.forward[s]));
    EXPECT_TRUE(close(costs.backward[s], whole.costs.backward[s]));
  }
}

/// A head of 1.5 M words costs more than all blocks together: it stands alone.
TEST(NetworkParts, AHeavyHeadStandsAlone) {
  const Transformer model = Gpt({.layers = 4, .hidden = 256, .heads = 4, .vocabulary = 1'500'000});
  const std::vector<NetworkPart> parts =
      PartsOfNetwork(model, ReadMachine("dgx-a100"), LayoutOf(2), {});
  const Program program(Generate("1f1b", {.ranks = 2, .microbatches = 4}), 1);
  const Partition best = BestPartition(parts, PartitionSettingOf(program, {}, 0));
  EXPECT_EQ(SplitOfBlocks(best.stages), (std::vector<int>{4, 0}));
}

}  // namespace
}  // namespace pipelag
