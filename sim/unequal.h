// Micro-batches of unequal cost: sequences packed to unlike lengths, experts of unlike load. Knows
// nothing of why.
#pragma once

#include <cstdint>
#include <vector>

#include "models/schedule/program.h"
#include "sim/times.h"

namespace pipelag {

/// What the micro-batches of a step cost, relative to their mean, which is 1: log-normal, `sigma`
/// of the logarithm. A pure function of seed and micro-batch before the mean is taken out. Throws
/// Error unless sigma is from 0 to 3.
std::vector<double> MicrobatchFactors(int microbatches, double sigma, uint64_t seed);

/// Multiplies F, B, I and W of each micro-batch with its factor, on every stage alike. Throws Error
/// as ActionTimes::Replace does.
void MakeUnequal(const Program& program, const std::vector<double>& factors, ActionTimes& times);

}  // namespace pipelag
