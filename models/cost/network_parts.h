// A network as parts that stages can be made of, with the times and sizes that the model of costs
// gives them. Knows no stages.
#pragma once

#include <vector>

#include "models/cost/estimate.h"
#include "models/partition.h"

namespace pipelag {

/// The embedding, a part per block, the head: a stage may hold an end alone. What a micro-batch
/// costs a rank whatever it holds is left out. Of `layout` the pipeline, chunks and split do not
/// count. Throws Error as EstimateRun.
std::vector<NetworkPart> PartsOfNetwork(const Transformer& model, const Machine& machine,
                                        const RunLayout& layout, const Efficiency& efficiency);

/// Blocks per stage, as RunLayout::split, of a partition of those parts.
std::vector<int> SplitOfBlocks(const std::vector<LayerRange>& stages);

}  // namespace pipelag
