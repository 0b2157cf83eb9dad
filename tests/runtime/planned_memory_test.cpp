// The memory of a run, as its trace tells it, against the buffers it has.
#include "runtime/planned_memory.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "models/schedule/generators.h"
#include "models/schedule/replicate.h"
#include "models/schedule/slots.h"
#include "runtime/cpu/threads.h"
#include "runtime/rank_plan.h"
#include "tests/runtime/every_schedule.h"
#include "tests/runtime/small_run.h"
#include "traces/memory.h"

namespace pipelag {
namespace {

class PlannedMemoryOf : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Schedules, PlannedMemoryOf, testing::ValuesIn(EverySchedule()),
                         [](const auto& parameter) { return CaseName(parameter.param); });

TEST_P(PlannedMemoryOf, IsUsedUpToTheLastSlotAndFreeInTheEnd) {
  const Program program(Generate(GetParam(), {.ranks = 2, .microbatches = kMicrobatches}), 3);
  const TrainingOptions options = Options("adamw", "none", program.schedule().stages);
  const PlannedMemory memory = PlanMemory(program, options, 0, false);
  const Trace trace = TrainOnThreads(program, options, TestCorpus()).trace;
  const std::vector<RankMemory> ranks = MemoryOverTime(trace, memory.sizes, memory.standing);
  for (size_t r = 0; r < ranks.size(); ++r) {
    const RankPlan plan = PlanRank(program, static_cast<int>(r), NeverDelayingSlots(program));
    Bytes slots = 0;
    Bytes least = 0;
    for (const StagePlan& stage : plan.stages) {
      const StageMemory& sizes = memory.sizes.stages[static_cast<size_t>(stage.slice)];
      slots += stage.activation_slots * sizes.activation - stage.kept_slots * sizes.freed_at_input;
      least = std::max(least, stage.activation_slots * sizes.activation);
    }
    EXPECT_LE(ranks[r].peak_activations, slots);
    EXPECT_GE(ranks[r].peak_activations, least);
    if (plan.stages.size() == 1 && plan.stages[0].kept_slots == 0) {
      EXPECT_EQ(ranks[r].peak_activations, slots);
    }
    EXPECT_EQ(ranks[r].curve.back().bytes, memory.standing[r].Total());
  }
}

TEST(PlannedMemory, CountsEveryBufferThatStands) {
  const Program program(Generate("2bw", {.ranks = 2, .microbatches = 4}), 3);
  const TrainingOptions options = Options("adamw", "none", 2);
  const PlannedMemory memory = PlanMemory(program, options, 0, false);
  const StageLayout first(options.shape, options.split[0]);
  const StandingMemory& standing = memory.standing[0];
  EXPECT_EQ(standing.weights, first.size() * 4);
  EXPECT_EQ(standing.stash, standing.weights);  // the other of two versions
  EXPECT_EQ(standing.gradients, first.size() * 4);
  Bytes parameters = 0;
  for (const StageTensor& tensor : first.tensors()) parameters += tensor.elements() * 4;
  EXPECT_EQ(standing.optimizer, 2 * parameters);  // two moments
  // Messages of one sequence of 4 tokens of 8 numbers: those that come, and those that leave.
  EXPECT_EQ(standing.transfer_buffers % (4 * 8 * 4), 0);
  EXPECT_GE(standing.transfer_buffers, 2 * 4 * 8 * 4);
}

TEST(PlannedMemory, CountsWhatOtherProcessesAddToSums) {
  GeneratorOptions sizes{.ranks = 2, .microbatches = 4, .tied = true};
  sizes.reduction = true;
  const Program program(Replicate(Generate("1f1b", sizes), 2), 3);
  TrainingOptions options = Options("adamw", "none", 2);
  options.shape.tied = true;
  const PlannedMemory threads = PlanMemory(program, options, 0, false);
  const PlannedMemory processes = PlanMemory(program, options, 0, true);
  for (size_t rank = 0; rank < 4; ++rank) {
    const StageLayout layout(options.shape, options.split[rank % 2]);
    // Of two members each receives half of what the other has: replicas, and ends of a pipeline.
    const int64_t elements = layout.gradient_size() / 2 + layout.tied()->elements() / 2;
    EXPECT_NEAR(static_cast<double>(processes.standing[rank].transfer_buffers -
                                    threads.standing[rank].transfer_buffers),
                static_cast<double>(elements * 4), 4.0 * 4);  // halves of odd numbers
  }
}

}  // namespace
}  // namespace pipelag
