#include "runtime/network/gemm.h"

#include <dnnl.h>
#include <omp.h>
#ifdef __SSE3__
#include <pmmintrin.h>
#endif

#include "models/error.h"

namespace pipelag {

void PrepareThread() {
  omp_set_num_threads(1);
#ifdef __SSE3__
  _MM_SET_FLUSH_ZERO_MODE(_MM_FLUSH_ZERO_ON);
  _MM_SET_DENORMALS_ZERO_MODE(_MM_DENORMALS_ZERO_ON);
#endif
}

template <>
void Multiply<float>(Transpose transpose_a, Transpose transpose_b, int64_t m, int64_t n, int64_t k,
                     float alpha, const float* a, int64_t lda, const float* b, int64_t ldb,
                     float beta, float* c, int64_t ldc) {
  const dnnl_status_t status = dnnl_sgemm(transpose_a == Transpose::kYes ? 'T' : 'N',
                                          transpose_b == Transpose::kYes ? 'T' : 'N', m, n, k,
                                          alpha, a, lda, b, ldb, beta, c, ldc);
  CHECK(status == dnnl_success);
}

template <>
void Multiply<double>(Transpose transpose_a, Transpose transpose_b, int64_t m, int64_t n, int64_t k,
                      double alpha, const double* a, int64_t lda, const double* b, int64_t ldb,
                      double beta, double* c, int64_t ldc) {
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t l = 0; l < k; ++l) {
        sum += (transpose_a == Transpose::kYes ? a[l * lda + i] : a[i * lda + l]) *
               (transpose_b == Transpose::kYes ? b[j * ldb + l] : b[l * ldb + j]);
      }
      double& out = c[i * ldc + j];
      out = beta == 0 ? alpha * sum : alpha * sum + beta * out;
    }
  }
}

}  // namespace pipelag
