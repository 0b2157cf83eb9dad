#include "runtime/planned_memory.h"

#include "models/optimizer_cost.h"
#include "models/schedule/slots.h"
#include "models/update_time.h"
#include "runtime/cpu/outcome.h"
#include "runtime/network/stage.h"
#include "runtime/rank_plan.h"

namespace pipelag {
namespace {

Bytes Floats(int64_t count) { return count * static_cast<Bytes>(sizeof(float)); }

int64_t StateFloats(const TrainingOptions& options, const StagePlan& stage) {
  int64_t floats = 0;
  for (const ParameterShape& tensor :
       StageParameters(options.shape, options.split[static_cast<size_t>(stage.slice)])) {
    floats += OptimizerCost(options.optimizer.name, tensor).state_floats +
              CorrectionCost(options.correction.name, tensor, stage.gradient_delay).state_floats;
  }
  return floats;
}

}  // namespace

PlannedMemory PlanMemory(const Program& program, const TrainingOptions& options, int64_t first_step,
                         bool processes) {
  CheckFits(program, options);
  PlannedMemory memory;
  std::vector<StageLayout> layouts;
  for (const LayerRange& range : options.split) {
    const StageNetwork<float> network(options.shape, range, options.microbatch_size,
                                      options.recompute, options.precision);
    layouts.push_back(network.layout());
    memory.sizes.stages.push_back({.weights = Floats(network.layout().size()),
                                   .gradients = Floats(network.layout().gradient_size()),
                                   .activation = Floats(network.activation_elements()),
                                   .freed_at_input = -Floats(network.kept_elements()),
                                   .message = Floats(network.boundary_elements())});
  }
  const std::vector<int> slots = NeverDelayingSlots(program);
  for (int rank = 0; rank < program.schedule().ranks; ++rank) {
    const RankPlan plan = PlanRank(program, rank, slots, first_step);
    StandingMemory& standing = memory.standing.emplace_back();
    for (const StagePlan& stage : plan.stages) {
      const StageMemory& sizes = memory.sizes.stages[static_cast<size_t>(stage.slice)];
      standing.weights += sizes.weights;
      standing.stash += (stage.weight_buffers - 1) * sizes.weights;
      standing.gradients += stage.gradient_buffers * sizes.gradients;
      standing.optimizer += Floats(StateFloats(options, stage));
    }
    for (const MessagePlan& messages : plan.messages) {
      standing.transfer_buffers += messages.buffers * memory.sizes.stages.front().message;
    }
    if (!processes) continue;
    for (const ReductionPlan& reduction : plan.reductions) {
      const StageLayout& layout =
          layouts[static_cast<size_t>(program.schedule().SliceOf(reduction.stage))];
      const bool shared = program.schedule().groups[static_cast<size_t>(reduction.group)].purpose ==
                          CollectiveGroup::Purpose::kShared;
      const int64_t length = shared ? layout.tied()->elements() : layout.gradient_size();
      standing.transfer_buffers +=
          Floats(static_cast<int64_t>(reduction.ReceivedElements(static_cast<size_t>(length))));
    }
  }
  return memory;
}

}  // namespace pipelag
