// What training on CPU ranks keeps in memory: the buffers of its plan, in bytes. Scratch space of
// one action at a time, and copies of weights that are rounded for products in bf16, come on top.
// Knows no time.
#pragma once

#include <vector>

#include "models/memory.h"
#include "runtime/training.h"

namespace pipelag {

/// As MemoryOverTime takes it. What I leaves to W counts as held from I's end on, beside the
/// activation.
struct PlannedMemory {
  MemorySizes sizes;                     ///< by slice: activations only
  std::vector<StandingMemory> standing;  ///< per rank, of all replicas
};

/// `first_step`: updates done before the run. `processes`: each rank is one, and has room for what
/// others add to sums of gradients; threads reach into each other's. Throws Error if the program is
/// for another number of stages than options.split, or cannot be run.
PlannedMemory PlanMemory(const Program& program, const TrainingOptions& options, int64_t first_step,
                         bool processes);

}  // namespace pipelag
