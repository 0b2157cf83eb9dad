// A network as parts that stages can be made of, with the times and sizes that the model of costs
// gives them. Knows no stages.
#pragma once

#include <vector>

#include "models/cost/estimate.h"
#include "models/partition.h"

namespace pipelag {

/// A part per block; the embedding is in the first, the head in the last, since every stage has at
/// least a block. What a micro-batch costs a rank whatever it holds is left out. Of `layout` the
/// pipeline, chunks and split do not count. Throws Error as EstimateRun.
std::vector<NetworkPart> BlocksAsParts(const Transformer& model, const Machine& machine,
                                       const RunLayout& layout, const Efficiency& efficiency);

}  // namespace pipelag
