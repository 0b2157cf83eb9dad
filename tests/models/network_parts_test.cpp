// Parts of a network against the stages they make.
#include "models/cost/network_parts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "models/architecture/config.h"
#include "models/cost/network_split.h"
#include "models/held_memory.h"
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

/// Calls `visit` with blocks per stage of every split: ends may have none.
template <class Visit>
void ForEachCounts(int blocks, int stages, const Visit& visit, std::vector<int> begun = {}) {
  const auto made = static_cast<int>(begun.size());
  if (made + 1 == stages) {
    begun.push_back(blocks);
    visit(begun);
    return;
  }
  for (int own = made == 0 ? 0 : 1; own <= blocks; ++own) {
    begun.push_back(own);
    ForEachCounts(blocks - own, stages, visit, begun);
    begun.pop_back();
  }
}

struct Order {
  const char* schedule;
  int ranks;
  int chunks;
};

Program ProgramOf(const Order& order, int microbatches) {
  GeneratorOptions options{.ranks = order.ranks, .microbatches = microbatches};
  if (order.chunks > 0) options.chunks = order.chunks;
  const Program one(Generate(order.schedule, options), 1);
  return one.WithSteps(2);
}

/// Against all splits, under limits from where all fit to where none does: what is found fits by
/// the memory of a run, is found whenever any fits, and is never slower than the even one.
TEST(NetworkSplit, FitsWheneverAnyDoesAndIsNeverSlowerThanTheEvenOne) {
  const Transformer model = Gpt({.layers = 9, .hidden = 1024, .heads = 8, .vocabulary = 60'000});
  const Machine machine = ReadMachine("dgx-h100");
  int fitting = 0;
  int none = 0;
  for (const Order& order :
       {Order{"1f1b", 4, 0}, Order{"zb-h1", 3, 0}, Order{"interleaved-1f1b", 2, 2},
        Order{"zb-v", 2, 0}, Order{"dualpipe-v", 2, 0}, Order{"2bw", 3, 0}}) {
    for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
      for (const int zero : {1, 3}) {
        const Program program = ProgramOf(order, 4 * order.ranks);
        const Schedule& schedule = program.schedule();
        RunLayout layout = LayoutOf(order.ranks);
        layout.chunks = schedule.stages / schedule.ranks;
        layout.microbatches = schedule.microbatches;
        layout.sharding.recompute = recompute;
        layout.shard_states = zero;
        const HeldMemory held(program);
        std::vector<Bytes> needs;
        ForEachCounts(9, schedule.stages, [&](const std::vector<int>& blocks) {
          if (blocks.back() < 0) return;
          RunLayout own = layout;
          own.split = blocks;
          const MemorySizes sizes = EstimateRun(model, machine, own, {}).memory;
          const std::vector<Bytes> peaks = held.PeaksOf(program, sizes);
          needs.push_back(*std::max_element(peaks.begin(), peaks.end()));
        });
        std::sort(needs.begin(), needs.end());
        const NetworkSplit even = AssessNetworkSplit(model, machine, layout, {}, program);
        const std::vector<Bytes> even_needs =
            held.PeaksOf(program, EstimateRun(model, machine, layout, {}).memory);
        // A hundred bytes are for rounding part by part.
        for (const Bytes limit : {needs.front() - 1, needs.front() + 100, needs[needs.size() / 9],
                                  needs[needs.size() / 3], needs.back() + 100}) {
          const std::string what = std::string(order.schedule) + ' ' + std::to_string(limit);
          if (limit < needs.front()) {
            EXPECT_THROW(BestNetworkSplit(model, machine, layout, {}, program, limit), Error)
                << what;
            ++none;
            continue;
          }
          const NetworkSplit found = BestNetworkSplit(model, machine, layout, {}, program, limit);
          const std::vector<Bytes>& memory = found.partition.rank_memory;
          EXPECT_LE(*std::max_element(memory.begin(), memory.end()), limit) << what;
          ++fitting;
          RunLayout own = layout;
          own.split = found.blocks;
          EXPECT_EQ(held.PeaksOf(program, EstimateRun(model, machine, own, {}).memory), memory);
          if (limit >= *std::max_element(even_needs.begin(), even_needs.end())) {
            EXPECT_LE(found.partition.bottleneck, even.partition.bottleneck) << what;
          }
        }
      }
    }
  }
  EXPECT_EQ(fitting, 4 * none);
}

}  // namespace
}  // namespace pipelag
