// How far kernels may lie from the CPU's results, relative to the largest number of a result.
#pragma once

#include "runtime/cuda/kernels/bfloat16.h"

namespace pipelag::cuda {

/// Float results, also of bf16 inputs: what a different order of sums leaves.
constexpr double kExact = 1e-5;

/// Results stored as T: bf16 rounds to 8 bits, half a unit of the last one at a time.
template <class T>
constexpr double kTolerance = sizeof(T) == sizeof(float) ? kExact : 1.01 / 256;

/// Behind products of numbers that were themselves rounded to T on the way.
template <class T>
constexpr double kProductTolerance = sizeof(T) == sizeof(float) ? kExact : 2.0 / 256;

}  // namespace pipelag::cuda
