// Row-major matrix products on the calling thread, the one place where matrices are multiplied. The
// float product is oneDNN's; the double one is a plain loop for tests. Knows no network.
#pragma once

#include <cstdint>

namespace pipelag {

enum class Transpose { kNo, kYes };

/// Sets up the *calling* thread for arithmetic; called once at the start of each thread that
/// computes.
/// - Every later product runs on this thread alone: one that several threads share sums in an order
///   that depends on their number, and stages that compete for cores are slower than others.
/// - Subnormal floats become zero. A run about to diverge fills up with them (attention weights,
///   second moments), and x86 takes some 150 cycles for each: 120 steps of AdamW at twice the best
///   learning rate took 9 times as long, and ended at the same loss to the last digit.
void PrepareThread();

/// c = alpha · op(a) · op(b) + beta · c, where op(a) is m×k, op(b) is k×n, c is m×n; `lda`, `ldb`,
/// `ldc` are the distances between the rows of the matrices *as stored*. With beta 0, c is written
/// without being read. c must not overlap a or b. On one thread the result is a pure function of
/// the arguments. Real is float or double.
template <class Real>
void Multiply(Transpose transpose_a, Transpose transpose_b, int64_t m, int64_t n, int64_t k,
              Real alpha, const Real* a, int64_t lda, const Real* b, int64_t ldb, Real beta,
              Real* c, int64_t ldc);

}  // namespace pipelag
