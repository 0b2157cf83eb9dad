// Softmax over the vocabulary and cross-entropy on the device, without probabilities in memory.
// What holds for all kernels: embedding.h.
#pragma once

#include <cstdint>

#include "runtime/cuda/kernels/bfloat16.h"
#include "runtime/cuda/kernels/stream.h"
#include "runtime/data/token.h"

namespace pipelag::cuda {

/// Floats and doubles that CrossEntropyForward keeps or wants: log_sums is kept for the backward.
/// *loss = Σ over rows of −ln softmax(logits)[i, targets[i]] in double; rows of logits are `stride`
/// apart (≥ cols; what lies between is not read). log_sums[i] = ln Σ e^logits[i,:]. row_losses
/// (rows doubles) is scratch: 256 runs of neighbouring rows are added in ascending order, then the
/// runs in ascending order. One read of the logits (online softmax: Milakov, Gimelshein, arXiv
/// 1805.02867): moves rows · cols · sizeof(T) bytes.
template <class T>
void CrossEntropyForward(Stream stream, int64_t rows, int64_t cols, int64_t stride,
                         const Token* targets, const T* logits, float* log_sums, double* row_losses,
                         double* loss);

/// logit_gradient = scale · (softmax(logits) − one-hot(targets)), zero in the `stride` − cols
/// columns behind, so that products may run over them; logit_gradient may be logits. Moves rows ·
/// cols · 2 sizeof(T) bytes.
template <class T>
void CrossEntropyBackward(Stream stream, int64_t rows, int64_t cols, int64_t stride,
                          const Token* targets, const T* logits, const float* log_sums, float scale,
                          T* logit_gradient);

}  // namespace pipelag::cuda
