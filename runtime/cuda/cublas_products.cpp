#include "runtime/cuda/cublas_products.h"

#include <cublasLt.h>

#include <algorithm>
#include <bit>
#include <compare>
#include <map>
#include <string>
#include <type_traits>

#include "models/error.h"

namespace pipelag::cuda {
namespace {

/// As large as the library's own advice for Hopper, which is the largest.
constexpr size_t kWorkspaceBytes = size_t{32} << 20;

void Expect(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(std::string("cuBLASLt cannot ") + what + ": " + cublasLtGetStatusString(status));
}

template <class Real>
constexpr cudaDataType_t kTypeOf = std::is_same_v<Real, Bfloat16> ? CUDA_R_16BF : CUDA_R_32F;

/// Bytes of which an address is a multiple, up to what every tensor has in every partition: else
/// the choice of an algorithm, and with it the last bits, would depend on where in its stage one
/// lies.
uint32_t AlignmentOf(const void* pointer) {
  constexpr uint32_t kMost = 16;
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  return address == 0 ? kMost : std::min(kMost, 1u << std::min(8, std::countr_zero(address)));
}

/// All that the choice of an algorithm may depend on.
struct PlanKey {
  cudaDataType_t in;
  cudaDataType_t out;
  int64_t m, n, k, lda, ldb, ldd;
  Transpose transpose_a, transpose_b;
  Epilogue epilogue;
  bool reads_c;
  bool in_place;
  uint32_t align_a, align_b, align_c, align_d, align_bias, align_aux;

  auto operator<=>(const PlanKey&) const = default;
};

template <class In, class Out>
PlanKey KeyOf(const Product<In, Out>& product) {
  const void* sums = product.epilogue == Epilogue::kRowSums ? product.row_sums : nullptr;
  const void* bias = product.bias;
  return {.in = kTypeOf<In>,
          .out = kTypeOf<Out>,
          .m = product.m,
          .n = product.n,
          .k = product.k,
          .lda = product.lda,
          .ldb = product.ldb,
          .ldd = product.ldd,
          .transpose_a = product.transpose_a,
          .transpose_b = product.transpose_b,
          .epilogue = product.epilogue,
          .reads_c = product.beta != 0,
          .in_place = product.c == product.d,
          .align_a = AlignmentOf(product.a),
          .align_b = AlignmentOf(product.b),
          .align_c = AlignmentOf(product.beta != 0 ? product.c : product.d),
          .align_d = AlignmentOf(product.d),
          .align_bias = AlignmentOf(sums != nullptr ? sums : bias),
          .align_aux = AlignmentOf(product.aux)};
}

cublasLtEpilogue_t EpilogueOf(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::kNone:
      return CUBLASLT_EPILOGUE_DEFAULT;
    case Epilogue::kBias:
      return CUBLASLT_EPILOGUE_BIAS;
    case Epilogue::kGelu:
      return CUBLASLT_EPILOGUE_GELU_AUX;
    case Epilogue::kBiasGelu:
      return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case Epilogue::kGeluGradient:
      return CUBLASLT_EPILOGUE_DGELU;
    case Epilogue::kRowSums:
      return CUBLASLT_EPILOGUE_BGRADB;
  }
  CHECK(false);
}

struct Destroy {
  void operator()(cublasLtMatmulDesc_t it) const { cublasLtMatmulDescDestroy(it); }
  void operator()(cublasLtMatrixLayout_t it) const { cublasLtMatrixLayoutDestroy(it); }
  void operator()(cublasLtMatmulPreference_t it) const { cublasLtMatmulPreferenceDestroy(it); }
};
template <class Handle>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy>;

/// The library's matrices are column-major: what it is given are the transposes, dᵀ = op(b)ᵀ ·
/// op(a)ᵀ, whose memory is the same.
class Plan {
 public:
  Plan(cublasLtHandle_t handle, const PlanKey& key, const void* bias, const void* aux);

  bool found() const { return found_; }
  template <class In, class Out>
  void Run(cublasLtHandle_t handle, const Product<In, Out>& product, void* workspace,
           Stream stream);

 private:
  template <class Value>
  void Set(cublasLtMatmulDescAttributes_t attribute, const Value& value) {
    Expect(cublasLtMatmulDescSetAttribute(product_.get(), attribute, &value, sizeof value),
           "describe a product");
  }
  void Describe(const PlanKey& key, const void* bias, const void* aux);
  void Search(cublasLtHandle_t handle, const PlanKey& key);

  Owned<cublasLtMatmulDesc_t> product_;
  Owned<cublasLtMatrixLayout_t> left_;
  Owned<cublasLtMatrixLayout_t> right_;
  Owned<cublasLtMatrixLayout_t> summand_;
  Owned<cublasLtMatrixLayout_t> result_;
  cublasLtMatmulAlgo_t algorithm_ = {};
  size_t workspace_bytes_ = 0;
  bool found_ = false;
};

Plan::Plan(cublasLtHandle_t handle, const PlanKey& key, const void* bias, const void* aux) {
  const auto layout = [](cudaDataType_t type, int64_t rows, int64_t cols, int64_t ld) {
    cublasLtMatrixLayout_t made = nullptr;
    Expect(cublasLtMatrixLayoutCreate(&made, type, static_cast<uint64_t>(cols),
                                      static_cast<uint64_t>(rows), ld),
           "describe a matrix");
    return Owned<cublasLtMatrixLayout_t>(made);
  };
  const bool flip_a = key.transpose_a == Transpose::kYes;
  const bool flip_b = key.transpose_b == Transpose::kYes;
  left_ = layout(key.in, flip_b ? key.n : key.k, flip_b ? key.k : key.n, key.ldb);
  right_ = layout(key.in, flip_a ? key.k : key.m, flip_a ? key.m : key.k, key.lda);
  summand_ = layout(key.out, key.m, key.n, key.ldd);
  result_ = layout(key.out, key.m, key.n, key.ldd);
  Describe(key, bias, aux);
  Search(handle, key);
}

void Plan::Describe(const PlanKey& key, const void* bias, const void* aux) {
  // Pedantic: whatever the environment allows the library, fp32 stays fp32.
  const cublasComputeType_t compute =
      key.in == CUDA_R_32F ? CUBLAS_COMPUTE_32F_PEDANTIC : CUBLAS_COMPUTE_32F;
  cublasLtMatmulDesc_t product = nullptr;
  Expect(cublasLtMatmulDescCreate(&product, compute, CUDA_R_32F), "describe a product");
  product_.reset(product);
  const auto flip = [](Transpose transpose) {
    return transpose == Transpose::kYes ? CUBLAS_OP_T : CUBLAS_OP_N;
  };
  Set(CUBLASLT_MATMUL_DESC_TRANSA, flip(key.transpose_b));
  Set(CUBLASLT_MATMUL_DESC_TRANSB, flip(key.transpose_a));
  Set(CUBLASLT_MATMUL_DESC_EPILOGUE, EpilogueOf(key.epilogue));
  // The search reads off them how they are aligned.
  if (bias != nullptr) Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  if (aux != nullptr) {
    Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux);
    Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, key.ldd);
  }
}

void Plan::Search(cublasLtHandle_t handle, const PlanKey& key) {
  cublasLtMatmulPreference_t made = nullptr;
  Expect(cublasLtMatmulPreferenceCreate(&made), "describe a preference");
  const Owned<cublasLtMatmulPreference_t> preference(made);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    Expect(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value),
           "describe a preference");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
  // Parts of a sum meet in fp32, in a step of their own.
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.align_b);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.align_a);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.align_c);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.align_d);
  cublasLtMatmulHeuristicResult_t result = {};
  int results = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle, product_.get(), left_.get(), right_.get(), summand_.get(), result_.get(),
      preference.get(), 1, &result, &results);
  found_ = status == CUBLAS_STATUS_SUCCESS && results > 0 && result.state == CUBLAS_STATUS_SUCCESS;
  if (!found_) return;
  algorithm_ = result.algo;
  workspace_bytes_ = result.workspaceSize;
}

template <class In, class Out>
void Plan::Run(cublasLtHandle_t handle, const Product<In, Out>& product, void* workspace,
               Stream stream) {
  const void* bias = product.bias;
  if (product.epilogue == Epilogue::kRowSums) bias = product.row_sums;
  if (bias != nullptr) Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  if (product.aux != nullptr) Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, product.aux);
  const Out* summand = product.beta != 0 ? product.c : product.d;
  Expect(
      cublasLtMatmul(handle, product_.get(), &product.alpha, product.b, left_.get(), product.a,
                     right_.get(), &product.beta, summand, summand_.get(), product.d, result_.get(),
                     &algorithm_, workspace, workspace_bytes_, static_cast<cudaStream_t>(stream)),
      "multiply matrices");
}

class CublasProducts : public Products {
 public:
  CublasProducts() { Expect(cublasLtCreate(&handle_), "begin"); }
  ~CublasProducts() override {
    plans_.clear();
    cublasLtDestroy(handle_);
  }

  size_t workspace_bytes() const override { return kWorkspaceBytes; }
  void UseWorkspace(void* workspace) override { workspace_ = workspace; }

  bool Multiply(Stream stream, const Product<float, float>& product) override {
    return Do(stream, product);
  }
  bool Multiply(Stream stream, const Product<Bfloat16, Bfloat16>& product) override {
    return Do(stream, product);
  }
  bool Multiply(Stream stream, const Product<Bfloat16, float>& product) override {
    return Do(stream, product);
  }

 private:
  template <class In, class Out>
  bool Do(Stream stream, const Product<In, Out>& product);

  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  std::map<PlanKey, Plan> plans_;
};

template <class In, class Out>
bool CublasProducts::Do(Stream stream, const Product<In, Out>& product) {
  const PlanKey key = KeyOf(product);
  auto at = plans_.find(key);
  if (at == plans_.end()) {
    const void* bias = product.bias;
    if (product.epilogue == Epilogue::kRowSums) bias = product.row_sums;
    at = plans_.try_emplace(key, handle_, key, bias, product.aux).first;
  }
  if (!at->second.found()) {
    if (product.epilogue != Epilogue::kNone) return false;
    throw Error("cuBLASLt has no way to multiply " + std::to_string(product.m) + "×" +
                std::to_string(product.k) + " by " + std::to_string(product.k) + "×" +
                std::to_string(product.n) + " on this device");
  }
  at->second.Run(handle_, product, workspace_, stream);
  return true;
}

}  // namespace

std::unique_ptr<Products> MakeCublasProducts() { return std::make_unique<CublasProducts>(); }

}  // namespace pipelag::cuda
