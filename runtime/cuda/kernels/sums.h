// What transports add up on a device. Knows pointers and sizes only.
#pragma once

#include <cstdint>

#include "runtime/cuda/kernels/stream.h"

namespace pipelag::cuda {

/// sum[i] += summand[i].
void Add(Stream stream, float* sum, const float* summand, int64_t count);
void Add(Stream stream, double* sum, const double* summand, int64_t count);

}  // namespace pipelag::cuda
