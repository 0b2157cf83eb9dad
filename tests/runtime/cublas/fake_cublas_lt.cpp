#include "tests/runtime/cublas/fake_cublas_lt.h"

#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "models/error.h"
#include "runtime/cuda/kernels/bfloat16.h"

namespace {

using pipelag::cuda::Bfloat16;
using pipelag::cuda::TheFakeCublasLt;

/// Attributes by number, as bytes.
struct Attributes {
  std::map<int, std::vector<char>> values;

  cublasStatus_t Set(int attribute, const void* value, size_t bytes) {
    const auto* from = static_cast<const char*>(value);
    values[attribute].assign(from, from + bytes);
    return CUBLAS_STATUS_SUCCESS;
  }
  template <class Value>
  Value Get(int attribute, Value otherwise) const {
    const auto at = values.find(attribute);
    if (at == values.end()) return otherwise;
    CHECK(at->second.size() == sizeof(Value));
    Value value;
    std::memcpy(&value, at->second.data(), sizeof value);
    return value;
  }
};

struct Description : Attributes {
  cublasComputeType_t compute;
  cudaDataType_t scale;

  cublasLtEpilogue_t epilogue() const {
    return Get(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DEFAULT);
  }
  bool Flips(cublasLtMatmulDescAttributes_t which) const {
    return Get(which, CUBLAS_OP_N) == CUBLAS_OP_T;
  }
  char* bias() const { return Get<char*>(CUBLASLT_MATMUL_DESC_BIAS_POINTER, nullptr); }
  char* aux() const { return Get<char*>(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, nullptr); }
};

struct Layout {
  cudaDataType type;
  uint64_t rows;
  uint64_t cols;
  int64_t ld;
};

/// What an algorithm was chosen for.
struct Promise {
  uint32_t a, b, c, d;
  cublasLtEpilogue_t epilogue;
};

template <class To, class From>
To* As(From* from) {
  return reinterpret_cast<To*>(from);
}

double Read(const Layout& layout, const void* at, uint64_t row, uint64_t col) {
  CHECK(row < layout.rows && col < layout.cols && layout.ld >= static_cast<int64_t>(layout.rows));
  const size_t i = static_cast<size_t>(layout.ld) * col + row;
  if (layout.type == CUDA_R_16BF) {
    return static_cast<double>(ToFloat(static_cast<const Bfloat16*>(at)[i]));
  }
  return static_cast<double>(static_cast<const float*>(at)[i]);
}

void Write(const Layout& layout, double value, uint64_t row, uint64_t col, void* at) {
  CHECK(row < layout.rows && col < layout.cols);
  const size_t i = static_cast<size_t>(layout.ld) * col + row;
  const auto rounded = static_cast<float>(value);
  if (layout.type == CUDA_R_16BF) {
    static_cast<Bfloat16*>(at)[i] = pipelag::cuda::ToBfloat16(rounded);
  } else {
    static_cast<float*>(at)[i] = rounded;
  }
}

double Gelu(double x) {
  return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

double GeluSlope(double x) {
  const double t = std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.7978845608028654 * (1 + 3 * 0.044715 * x * x);
}

bool IsAligned(const void* pointer, uint32_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

/// One element of the result behind its sum.
double Finished(const Description& how, const Layout& d, double sum, uint64_t row, uint64_t col) {
  const cublasLtEpilogue_t epilogue = how.epilogue();
  const Layout vector = {
      .type = d.type, .rows = d.rows, .cols = 1, .ld = static_cast<int64_t>(d.rows)};
  const Layout aux = {.type = d.type,
                      .rows = d.rows,
                      .cols = d.cols,
                      .ld = how.Get<int64_t>(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, 0)};
  if (epilogue == CUBLASLT_EPILOGUE_BIAS || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) {
    sum += Read(vector, how.bias(), row, 0);
  }
  if (epilogue == CUBLASLT_EPILOGUE_GELU_AUX || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) {
    Write(aux, sum, row, col, how.aux());
    return Gelu(sum);
  }
  if (epilogue == CUBLASLT_EPILOGUE_DGELU) return sum * GeluSlope(Read(aux, how.aux(), row, col));
  return sum;
}

}  // namespace

namespace pipelag::cuda {

FakeCublasLt& TheFakeCublasLt() {
  static FakeCublasLt fake;
  return fake;
}

}  // namespace pipelag::cuda

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = As<std::remove_pointer_t<cublasLtHandle_t>>(new char);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete As<char>(handle);
  return CUBLAS_STATUS_SUCCESS;
}
const char* cublasLtGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_INVALID_VALUE ? "an invalid value" : "a status";
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld) {
  *layout = As<std::remove_pointer_t<cublasLtMatrixLayout_t>>(new Layout{type, rows, cols, ld});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete As<Layout>(layout);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* description,
                                        cublasComputeType_t compute, cudaDataType_t scale) {
  auto* made = new Description;
  made->compute = compute;
  made->scale = scale;
  *description = As<std::remove_pointer_t<cublasLtMatmulDesc_t>>(made);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) {
  delete As<Description>(description);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t description,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  return As<Description>(description)->Set(attribute, value, bytes);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = As<std::remove_pointer_t<cublasLtMatmulPreference_t>>(new Attributes);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete As<Attributes>(preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  return As<Attributes>(preference)->Set(attribute, value, bytes);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t /*handle*/,
                                              cublasLtMatmulDesc_t description,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* found) {
  CHECK(wanted >= 1 && a != nullptr && b != nullptr && c != nullptr && d != nullptr);
  ++TheFakeCublasLt().searches;
  *found = 0;
  const Description& how = *As<Description>(description);
  const Attributes& preferred = *As<Attributes>(preference);
  const cublasLtEpilogue_t epilogue = how.epilogue();
  // Sums whose parts meet in the output, in whatever order, have no fixed bits.
  const auto scheme = preferred.Get<uint32_t>(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                              CUBLASLT_REDUCTION_SCHEME_MASK);
  CHECK((scheme & CUBLASLT_REDUCTION_SCHEME_INPLACE) == 0);
  if (TheFakeCublasLt().missing.contains(epilogue)) return CUBLAS_STATUS_NOT_SUPPORTED;
  const bool gelu = epilogue == CUBLASLT_EPILOGUE_GELU_AUX ||
                    epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS ||
                    epilogue == CUBLASLT_EPILOGUE_DGELU;
  if (gelu && how.Get<int64_t>(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, 0) % 8 != 0) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  const auto alignment = [&](cublasLtMatmulPreferenceAttributes_t which) {
    return preferred.Get<uint32_t>(which, 256);
  };
  const Promise promise = {.a = alignment(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES),
                           .b = alignment(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES),
                           .c = alignment(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES),
                           .d = alignment(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES),
                           .epilogue = epilogue};
  results[0] = {};
  static_assert(sizeof promise <= sizeof results[0].algo);
  std::memcpy(&results[0].algo, &promise, sizeof promise);
  results[0].workspaceSize = preferred.Get<size_t>(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, 0);
  results[0].state = CUBLAS_STATUS_SUCCESS;
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t /*handle*/, cublasLtMatmulDesc_t description,
                              const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t /*stream*/) {
  ++TheFakeCublasLt().products;
  const Description& how = *As<Description>(description);
  const Layout& of_a = *As<Layout>(a_layout);
  const Layout& of_b = *As<Layout>(b_layout);
  const Layout& of_c = *As<Layout>(c_layout);
  const Layout& of_d = *As<Layout>(d_layout);
  Promise promise;
  std::memcpy(&promise, algorithm, sizeof promise);
  CHECK(promise.epilogue == how.epilogue());
  CHECK(IsAligned(a, promise.a) && IsAligned(b, promise.b) && IsAligned(c, promise.c) &&
        IsAligned(d, promise.d));
  CHECK(workspace != nullptr || workspace_bytes == 0);
  const bool flip_a = how.Flips(CUBLASLT_MATMUL_DESC_TRANSA);
  const bool flip_b = how.Flips(CUBLASLT_MATMUL_DESC_TRANSB);
  const uint64_t k = flip_a ? of_a.rows : of_a.cols;
  if ((flip_a ? of_a.cols : of_a.rows) != of_d.rows || (flip_b ? of_b.cols : of_b.rows) != k ||
      (flip_b ? of_b.rows : of_b.cols) != of_d.cols || of_c.rows != of_d.rows ||
      of_c.cols != of_d.cols || of_a.type != of_b.type || of_c.type != of_d.type ||
      how.scale != CUDA_R_32F) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  // TF32 is for those who ask; pedantic fp32 is that on every device.
  CHECK(of_a.type == CUDA_R_16BF ? how.compute == CUBLAS_COMPUTE_32F
                                 : how.compute == CUBLAS_COMPUTE_32F_PEDANTIC);
  const double scale = static_cast<double>(*static_cast<const float*>(alpha));
  const double kept = static_cast<double>(*static_cast<const float*>(beta));
  for (uint64_t row = 0; row < of_d.rows; ++row) {
    for (uint64_t col = 0; col < of_d.cols; ++col) {
      double sum = 0;
      for (uint64_t l = 0; l < k; ++l) {
        sum += Read(of_a, a, flip_a ? l : row, flip_a ? row : l) *
               Read(of_b, b, flip_b ? col : l, flip_b ? l : col);
      }
      sum *= scale;
      if (kept != 0) sum += kept * Read(of_c, c, row, col);
      Write(of_d, Finished(how, of_d, sum, row, col), row, col, d);
    }
  }
  // The sums of op(b) over k, one for each column of d, of the type of d.
  for (uint64_t col = 0; how.epilogue() == CUBLASLT_EPILOGUE_BGRADB && col < of_d.cols; ++col) {
    double sum = 0;
    for (uint64_t l = 0; l < k; ++l) sum += Read(of_b, b, flip_b ? col : l, flip_b ? l : col);
    const Layout vector = {of_d.type, of_d.cols, 1, static_cast<int64_t>(of_d.cols)};
    Write(vector, sum, col, 0, how.bias());
  }
  return CUBLAS_STATUS_SUCCESS;
}
