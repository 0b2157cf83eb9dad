// Which blocks of a network each stage gets, judged by what the model of costs gives the stages as
// they are in the end. Knows no flags.
#pragma once

#include <vector>

#include "models/cost/estimate.h"
#include "models/partition.h"
#include "models/schedule/program.h"

namespace pipelag {

struct NetworkSplit {
  std::vector<int> blocks;  ///< per stage, as RunLayout::split
  /// Of the stages as they are; `stages` of it are over PartsOfNetwork, `rank_memory` is
  /// HeldMemory's, and is there only where a limit is kept to.
  Partition partition;
};

/// By `layout.split`, evenly if that is empty; the layout is the program's. Throws Error as
/// EstimateRun.
NetworkSplit AssessNetworkSplit(const Transformer& model, const Machine& machine,
                                const RunLayout& layout, const Efficiency& efficiency,
                                const Program& program);

/// BestPartition of PartsOfNetwork, or the even split where that is better, within `limit` (0:
/// none). A stage's time and memory are not quite the sum of its parts': a split that turns out to
/// need more than the limit is looked for again with as much less. Throws Error as BestPartition.
NetworkSplit BestNetworkSplit(const Transformer& model, const Machine& machine, RunLayout layout,
                              const Efficiency& efficiency, const Program& program, Bytes limit);

}  // namespace pipelag
