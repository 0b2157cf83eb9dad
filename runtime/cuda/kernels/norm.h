// LayerNorm and RMSNorm on the device (formulas: runtime/network/norm.h), forward and backward.
// What holds for all kernels: embedding.h.
#pragma once

#include <cstdint>

#include "models/network.h"
#include "runtime/cuda/kernels/bfloat16.h"
#include "runtime/cuda/kernels/stream.h"

namespace pipelag::cuda {

/// y = norm(x), with mean and 1 / sqrt(…) of each row kept in float for the backward. RMSNorm
/// writes no mean; `shift` may be null. A warp works on a row: mean, then the variance around it,
/// then y, of which only the first reads x from memory. Moves rows · cols · 2 sizeof(T) bytes.
template <class T>
void NormForward(Stream stream, NormChoice kind, int64_t rows, int64_t cols, const T* x,
                 const float* gain, const float* shift, float* mean, float* inverse_deviation,
                 T* y);

/// x_gradient = residual_gradient + the gradient through the norm, since x also runs past it;
/// residual_gradient may be null (none) or x_gradient. RMSNorm does not read `mean`. Moves rows ·
/// cols · 4 sizeof(T) bytes, without a residual gradient 3.
template <class T>
void NormBackwardInput(Stream stream, NormChoice kind, int64_t rows, int64_t cols,
                       const T* y_gradient, const T* x, const float* gain, const float* mean,
                       const float* inverse_deviation, const T* residual_gradient, T* x_gradient);

/// Floats of scratch that NormBackwardWeight wants.
int64_t NormScratch(int64_t rows, int64_t cols);

/// gain_gradient += Σ over rows of y_gradient ⊙ normalised x, shift_gradient += Σ y_gradient (null:
/// none; RMSNorm has none). Chunks of rows are summed first, then the chunks in ascending order.
/// Moves rows · cols · 2 sizeof(T) bytes.
template <class T>
void NormBackwardWeight(Stream stream, NormChoice kind, int64_t rows, int64_t cols,
                        const T* y_gradient, const T* x, const float* mean,
                        const float* inverse_deviation, float* scratch, float* gain_gradient,
                        float* shift_gradient);

}  // namespace pipelag::cuda
