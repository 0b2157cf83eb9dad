// Routed experts over the ranks of a stage: who shares them, who copies them, and what that leaves
// on a device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/architecture/config.h"
#include "models/cost/estimate.h"
#include "models/cost/stage_parts.h"
#include "models/error.h"

namespace pipelag {
namespace {

RunLayout Layout(int tensor, int context, int data, int expert, int expert_tensor = 0) {
  RunLayout layout;
  layout.sharding.tensor = tensor;
  layout.sharding.context = context;
  layout.sharding.expert = expert;
  layout.sharding.expert_tensor = expert_tensor;
  layout.sharding.sequence_parallel = tensor > 1;
  layout.sharding.tokens = 4096;
  layout.data = data;
  return layout;
}

TEST(ExpertLayout, MembersTimesCopiesTimesPartsAreAllRanks) {
  for (const int tensor : {1, 2, 4}) {
    for (const int context : {1, 2}) {
      for (const int data : {4, 8}) {
        for (const int expert : {1, 2, 4}) {
          for (const int cut : {1, tensor}) {
            const RunGroups groups = GroupsOf(Layout(tensor, context, data, expert, cut));
            EXPECT_EQ(cut * groups.stage.expert.members * groups.expert_replicas.members,
                      tensor * context * data);
            EXPECT_EQ(groups.stage.expert.members, expert);
          }
        }
      }
    }
  }
}

TEST(ExpertLayout, CopiesShardTheStatesOfWhatTheyHold) {
  const Transformer model = ReadTransformer("Mixtral-8x7B");
  const Machine machine = ReadMachine("dgx-h100");
  const auto optimizer = [&](const RunLayout& layout) {
    return static_cast<double>(
        EstimateRun(model, machine, layout, Efficiency{}).memory.stages[0].optimizer);
  };
  const PartWork block = BlockWork(model, model.blocks[0], Layout(1, 1, 8, 8).sharding);
  const double experts = 32.0 * static_cast<double>(block.expert_parameters);
  const double all = static_cast<double>(CountParameters(model).Total()) - 7 * experts;
  RunLayout layout = Layout(1, 1, 8, 8);
  layout.shard_states = 0;
  const double per_parameter = optimizer(layout) / all;
  EXPECT_NEAR(per_parameter, 12, 1e-6) << "weights in 32 bits and two moments";
  layout.shard_states = 1;
  EXPECT_NEAR(optimizer(layout), per_parameter * ((all - experts) / 8 + experts), 1e3);
}

TEST(ExpertLayout, MayReachOverTheTensorGroup) {
  // DeepSeek-V3 with more devices per set of experts than data-parallel copies.
  const Transformer model = ReadTransformer("DeepSeek-V3");
  const Machine machine = ReadMachine("dgx-h100");
  RunLayout layout = Layout(2, 1, 32, 64, 1);
  layout.pipeline = 16;
  EXPECT_GT(EstimateRun(model, machine, layout, Efficiency{}).costs.forward[1].count(), 0);
  layout.sharding.expert = 128;
  try {
    EstimateRun(model, machine, layout, Efficiency{});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr(
                                  "expert parallelism of 128, each expert cut in 1, does not "
                                  "divide the 64 ranks of a stage (tensor 2, context 1, data 32)"));
  }
}

}  // namespace
}  // namespace pipelag
