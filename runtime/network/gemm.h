// Row-major matrix products on the calling thread, the one place where matrices are multiplied. The
// float product is oneDNN's; the double one is a plain loop for tests. Knows no network.
#pragma once

#include <cstdint>

namespace pipelag {

enum class Transpose { kNo, kYes };

/// Makes every later product of the *calling* thread run on that thread alone. Called once at the
/// start of each thread that multiplies: a product that several threads share sums in an order that
/// depends on their number, and stages that compete for cores are slower than stages that do not.
void UseOneThread();

/// c = alpha · op(a) · op(b) + beta · c, where op(a) is m×k, op(b) is k×n, c is m×n; `lda`, `ldb`,
/// `ldc` are the distances between the rows of the matrices *as stored*. With beta 0, c is written
/// without being read. c must not overlap a or b. On one thread the result is a pure function of
/// the arguments. Real is float or double.
template <class Real>
void Multiply(Transpose transpose_a, Transpose transpose_b, int64_t m, int64_t n, int64_t k,
              Real alpha, const Real* a, int64_t lda, const Real* b, int64_t ldb, Real beta,
              Real* c, int64_t ldc);

}  // namespace pipelag
