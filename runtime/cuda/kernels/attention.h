// Causal attention on the device without a T×T matrix in memory, forward and backward: tiles of
// queries meet tiles of keys in shared memory (Dao, "FlashAttention-2", arXiv 2307.08691,
// algorithms 1 and 2). What holds for all kernels: embedding.h.
#pragma once

#include <cstdint>

#include "runtime/cuda/kernels/bfloat16.h"
#include "runtime/cuda/kernels/stream.h"

namespace pipelag::cuda {

/// Rows of qkv hold `heads` queries, then `kv_heads` keys, then as many values, of head_size each,
/// rotated already where positions are rotary. Query head h attends with scale 1 / sqrt(head_size)
/// to the keys and values of head h · kv_heads / heads; kv_heads divides heads.
struct AttentionShape {
  int64_t batch = 1;
  int64_t sequence = 1;
  int64_t heads = 1;
  int64_t kv_heads = 1;
  int64_t head_size = 64;  ///< at most kLargestHead

  PIPELAG_ANYWHERE int64_t rows() const { return batch * sequence; }
  PIPELAG_ANYWHERE int64_t cols() const { return heads * head_size; }
  PIPELAG_ANYWHERE int64_t stride() const { return (heads + 2 * kv_heads) * head_size; }
  /// Elements of a float for each row of each head.
  PIPELAG_ANYWHERE int64_t row_elements() const { return batch * heads * sequence; }
};

constexpr int64_t kLargestHead = 128;

/// attended (rows, cols) = softmax(scale · Q · Kᵀ, causal) · V, and log_sums (batch, heads,
/// sequence) = ln Σ e^(scale · score) of each row, for the backward. Scores, exponentials and their
/// sums are float; bf16 with heads that are a multiple of 8 runs on tensor cores, which add in
/// float, and rounds the exponentials to bf16 before they meet V. Moves rows · (stride + cols) ·
/// sizeof(T) + 4 · row_elements bytes, and reads keys and values again, from the cache, for every
/// tile of queries; 4 · head_size operations for each of the row_elements · (sequence + 1) / 2
/// visible scores.
template <class T>
void AttentionForward(Stream stream, const AttentionShape& shape, const T* qkv, T* attended,
                      float* log_sums);

/// qkv_gradient (rows, stride), all of it, from what the forward took and gave. row_dots
/// (row_elements) is scratch for D = rowsum(attended_gradient ⊙ attended). One pass yields the
/// gradients of keys and values, heads that share them added in ascending order, another that of
/// the queries: seven products instead of the five of algorithm 2, whose sums of the queries'
/// gradient have no fixed order. In bf16 the probabilities and the gradients of the scores are
/// rounded before they meet other matrices. Moves at least 2 · rows · (stride + cols) · sizeof(T)
/// bytes, in three passes that each read what they need; 14 · head_size operations for each visible
/// score, of which 10 are needed.
template <class T>
void AttentionBackward(Stream stream, const AttentionShape& shape, const T* qkv, const T* attended,
                       const float* log_sums, const T* attended_gradient, float* row_dots,
                       T* qkv_gradient);

}  // namespace pipelag::cuda
