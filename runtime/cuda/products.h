// Matrix products on a device as an interface: a library does them on a GPU, plain loops in tests.
// Knows no network.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/cuda/kernels/bfloat16.h"
#include "runtime/cuda/kernels/stream.h"
#include "runtime/network/gemm.h"

namespace pipelag::cuda {

/// What a product does besides, in the same pass.
enum class Epilogue : uint8_t {
  kNone,
  kBias,          ///< d += bias, to every row
  kGelu,          ///< aux = d, d = gelu(d) in the tanh form
  kBiasGelu,      ///< kBias, then kGelu
  kGeluGradient,  ///< d = d ⊙ gelu'(aux)
  kRowSums,       ///< row_sums[i] = Σ over k of op(a)[i, k]
};

/// d = alpha · op(a) · op(b) + beta · c, then the epilogue, all row-major in device memory: op(a)
/// is (m, k), op(b) (k, n), c and d are (m, n); `lda`, `ldb` and `ldd` (that of c, d and aux) are
/// the distances between rows as stored. a and b hold In, c, d, aux and bias Out. Sums are fp32.
template <class In, class Out>
struct Product {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  Transpose transpose_a = Transpose::kNo;
  Transpose transpose_b = Transpose::kNo;
  const In* a = nullptr;
  int64_t lda = 0;
  const In* b = nullptr;
  int64_t ldb = 0;
  float alpha = 1;
  float beta = 0;          ///< 0: c is not read
  const Out* c = nullptr;  ///< may be d
  Out* d = nullptr;        ///< overlaps nothing else
  int64_t ldd = 0;
  Epilogue epilogue = Epilogue::kNone;
  const Out* bias = nullptr;  ///< n
  Out* aux = nullptr;         ///< (m, n): written by kGelu and kBiasGelu, read by kGeluGradient
  float* row_sums = nullptr;  ///< m
};

/// One per device and thread of use. What a product yields is a pure function of its arguments,
/// their alignment and the device.
class Products {
 public:
  Products() = default;
  virtual ~Products() = default;
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  /// Scratch of use within one product.
  virtual size_t workspace_bytes() const = 0;
  virtual void UseWorkspace(void* workspace) = 0;

  /// Enqueues the product and returns true; does nothing and returns false if the epilogue is not
  /// to be had in one with this product. Without an epilogue it is always true. Throws Error if the
  /// device refuses.
  virtual bool Multiply(Stream stream, const Product<float, float>& product) = 0;
  virtual bool Multiply(Stream stream, const Product<Bfloat16, Bfloat16>& product) = 0;
  virtual bool Multiply(Stream stream, const Product<Bfloat16, float>& product) = 0;
};

}  // namespace pipelag::cuda
