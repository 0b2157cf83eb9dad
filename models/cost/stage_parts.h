// What stands on each stage of a run: blocks, embedding, head, summed to work, seconds and
// parameters of one device. Knows no reduction over replicas and no optimizer.
#pragma once

#include <vector>

#include "models/cost/estimate.h"
#include "models/cost/part_time.h"
#include "models/optimizer_cost.h"

namespace pipelag {

struct StageParts {
  PartSeconds seconds;  ///< of one micro-batch
  int blocks = 0;
  Bytes activation = 0;       ///< of one micro-batch
  Bytes held_for_weight = 0;  ///< of one micro-batch, from I's end to W's
  Bytes recompute_peak = 0;   ///< the largest part's
  int64_t parameters = 0;     ///< on one device
  int64_t expert_parameters = 0;
  double recomputed_flops = 0;
  std::vector<ParameterShape> tensors;  ///< of one device: weights of products, the rest as one
};

/// The groups of ranks in Megatron's order.
struct RunGroups {
  StageGroups stage;
  RankGroup replicas;         ///< that reduce gradients: context and data
  RankGroup expert_replicas;  ///< of routed experts
};
RunGroups GroupsOf(const RunLayout& layout);

/// Per stage. Throws Error as EstimateRun does.
std::vector<StageParts> PartsOfStages(const Transformer& model, const Machine& machine,
                                      const RunLayout& layout, const Efficiency& efficiency);

}  // namespace pipelag
