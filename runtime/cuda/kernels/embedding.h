// The embedding on the device, forward and backward. As everywhere in runtime/cuda/kernels: T is
// float or Bfloat16, the type of activations and of their gradients; parameters are the float
// masters and their gradients float; all arithmetic is in float, every sum has a fixed order, and a
// result is a pure function of the arguments. All pointers are device memory aligned to 16 bytes;
// matrices are row-major without gaps unless a stride is given. A function enqueues and returns.
// Nothing is allocated: scratch is the caller's, and free again when the stream has passed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/cuda/kernels/bfloat16.h"
#include "runtime/cuda/kernels/stream.h"
#include "runtime/data/token.h"

namespace pipelag::cuda {

/// x[b,t,:] = token_table[tokens[b,t],:] + position_table[t,:], rounded once; x is
/// (batch · sequence, cols). A null position table is none. Moves rows · cols · (8 + sizeof(T))
/// bytes, without positions 4 fewer; tables that stay in the cache are read once.
template <class T>
void EmbedForward(Stream stream, const Token* tokens, int64_t batch, int64_t sequence, int64_t cols,
                  const float* token_table, const float* position_table, T* x);

/// Bytes of scratch that EmbedBackward wants for batch · sequence = `positions` tokens.
size_t EmbedScratchBytes(int64_t positions);

/// token_gradient[tokens[b,t],:] += x_gradient[b,t,:], in ascending order of (b,t), and
/// position_gradient[t,:] += x_gradient[b,t,:] in ascending b (null: none): the order, and in float
/// the bits, of the CPU's EmbedBackward. Positions are first sorted by token with a stable radix
/// sort of two passes of 8 bits (no atomics); then each token's owner adds its rows. At most 2^31
/// positions. Moves rows · cols · sizeof(T) bytes, twice with positions, and 8 · cols bytes for
/// each different token and position; the sort's 40 bytes or so per position hardly count.
template <class T>
void EmbedBackward(Stream stream, const Token* tokens, int64_t batch, int64_t sequence,
                   int64_t cols, const T* x_gradient, void* scratch, float* token_gradient,
                   float* position_gradient);

}  // namespace pipelag::cuda
