// Biases, residuals, GELU, SwiGLU and rotary positions on the device (formulas:
// runtime/network/kernels.h), and the column sums that are the gradients of biases. What holds for
// all kernels: embedding.h. `stride` is the distance between the rows of a part of wider ones.
#pragma once

#include <cstdint>

#include "runtime/cuda/kernels/bfloat16.h"
#include "runtime/cuda/kernels/stream.h"

namespace pipelag::cuda {

/// x += bias, for every row; a null bias is none. Moves rows · cols · 2 sizeof(T) bytes.
template <class T>
void AddBias(Stream stream, int64_t rows, int64_t cols, int64_t stride, const float* bias, T* x);

/// x = (x + bias) + residual, rounded once; a null bias is none. Moves rows · cols · 3 sizeof(T).
template <class T>
void AddBiasAndResidual(Stream stream, int64_t rows, int64_t cols, const float* bias,
                        const T* residual, T* x);

/// Floats of scratch that AddColumnSums wants.
int64_t ColumnSumsScratch(int64_t rows, int64_t cols);

/// sums[j] += Σ over rows of x[i,j]; null sums: nothing is done. Chunks of rows are summed first,
/// then the chunks in ascending order. Moves rows · cols · sizeof(T) bytes.
template <class T>
void AddColumnSums(Stream stream, int64_t rows, int64_t cols, int64_t stride, const T* x,
                   float* scratch, float* sums);

/// x += bias, rounded to T; y = gelu(x) of the rounded x. With a null bias x is only read. Moves
/// rows · cols · 3 sizeof(T) bytes, without bias 2.
template <class T>
void BiasGeluForward(Stream stream, int64_t rows, int64_t cols, const float* bias, T* x, T* y);

/// In place: y_gradient becomes the gradient of x, the biased input. Moves rows · cols · 3
/// sizeof(T) bytes.
template <class T>
void GeluBackward(Stream stream, int64_t rows, int64_t cols, const T* x, T* y_gradient);

/// y = silu(gate) ⊙ up of rows that hold `cols` of gate and `cols` of up. Moves rows · cols · 3
/// sizeof(T) bytes.
template <class T>
void SwiGluForward(Stream stream, int64_t rows, int64_t cols, const T* gate_and_up, T* y);

/// `gradient` is that of gate_and_up; it may be gate_and_up, but must not overlap y_gradient. Moves
/// rows · cols · 5 sizeof(T) bytes.
template <class T>
void SwiGluBackward(Stream stream, int64_t rows, int64_t cols, const T* gate_and_up,
                    const T* y_gradient, T* gradient);

/// In place, for heads 0 … heads − 1 of each row (those of the queries, then of the keys): the
/// pairs (i, i + D/2) are turned by `direction` (1 or −1) times the angle whose cosine and sine are
/// in the tables (sequence, D/2), as runtime/network/attention.h says. Row i is position i mod
/// sequence. Moves rows · heads · D · 2 sizeof(T) bytes.
template <class T>
void Rotate(Stream stream, int64_t rows, int64_t sequence, int64_t heads, int64_t head_size,
            int64_t stride, float direction, const float* cosines, const float* sines, T* qkv);

}  // namespace pipelag::cuda
