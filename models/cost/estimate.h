// From a network's shape, a machine and the way the one is laid over the other to what a simulated
// run needs: times and sizes per stage, and what is reduced over replicas. Knows no schedule beyond
// the number of its stages.
#pragma once

#include <string>
#include <vector>

#include "models/architecture/work.h"
#include "models/cost/efficiency.h"
#include "models/costs.h"
#include "models/hardware/machine.h"
#include "models/memory.h"
#include "models/network.h"

namespace pipelag {

/// How a training run is laid over the GPUs: tensor · context · pipeline · data of them. Ranks of a
/// tensor group are neighbours, then context, then data, then pipeline: Megatron's order. Routed
/// experts divide the ranks of a pipeline stage anew: those that share an expert are neighbours,
/// then the `sharding.expert` of them that together hold all, then copies.
struct RunLayout {
  Sharding sharding;
  int pipeline = 1;
  int chunks = 1;  ///< stages per pipeline rank
  int data = 1;
  int microbatches = 1;  ///< per batch and pipeline
  int shard_states = 1;  ///< ZeRO stage 0, 1, 2 (3: weights too, gathered for every F and backward)
  Precision precision = Precision::kBf16;
  std::string optimizer = "adamw";
  bool fused_accumulation = false;  ///< products add their gradients to the accumulators
                                    ///< themselves; else that is a pass of its own
  bool blocking_messages = false;   ///< between stages: whoever sends waits until it is done
  bool blocking_launches = false;   ///< the host waits for every kernel (CUDA_LAUNCH_BLOCKING=1)
  bool overlap_tensor = false;      ///< collectives of tensor parallelism run beside the products
  bool overlap_reduction = false;   ///< gradients are reduced block by block while the backward
                                    ///< runs, and weights gathered while the forward does
  std::vector<int> split;           ///< blocks per stage; empty: evenly

  int64_t gpus() const { return int64_t{1} * sharding.tensor * sharding.context * pipeline * data; }
  int64_t sequences() const { return sharding.sequences * microbatches * data; }  ///< per batch
};

/// Throws Error if there are more GPUs, or tokens in a micro-batch, than can be reckoned with.
void CheckLayoutSize(const RunLayout& layout);

/// Of one pipeline; the others are its copies.
struct Estimate {
  Costs costs;         ///< per stage; backward split and fused; message and its link; overlap if
                       ///< there are experts' messages to be hidden
  MemorySizes memory;  ///< of one device of each stage
  std::vector<Nanoseconds> reduction;  ///< per stage: gradients over the replicas, and gathering
                                       ///< what sharded states made, alone on its links; with
                                       ///< `overlap_reduction` what the last F and B leave of it.
                                       ///< Empty: there is nothing to be reduced
  /// Of the embedding that the head is tied to: first and last stage exchanging its gradients,
  /// alone on their links; 0 with one stage or a head of its own.
  Nanoseconds tied_exchange{0};
  double model_flops = 0;     ///< of a batch over all GPUs, recomputation not counted,
                              ///< attention as AttentionCount::kFull
  double hardware_flops = 0;  ///< with it
};

/// Throws Error if the layout does not fit the network (sizes that do not divide, more stages than
/// blocks), in one sentence that names both numbers.
Estimate EstimateRun(const Transformer& model, const Machine& machine, const RunLayout& layout,
                     const Efficiency& efficiency);

}  // namespace pipelag
