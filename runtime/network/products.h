// The products of activations with weights, in the precision that a network is trained with: where
// all linear layers multiply. Knows matrices only.
#pragma once

#include <cstdint>
#include <memory>

#include "runtime/network/gemm.h"

namespace pipelag {

enum class ProductPrecision : uint8_t {
  kFp32,
  kBf16,  ///< operands rounded to bfloat16, products added up and stored in fp32
};

/// Throws Error if products of this precision cannot be had on this processor.
void CheckPrecision(ProductPrecision precision);

/// What is known of a product's operands, so that nothing is rounded twice.
struct Operands {
  bool a_as_before = false;  ///< a is the a of the product before, unchanged, with the same rows
  bool b_weights = false;    ///< b is a matrix of weights, without gaps: see Products::Forget
};

/// Of two products behind each other: whether the second's gradient is that of the first.
enum class Gradient : bool { kNew, kAsBefore };

/// oneDNN's products of bfloat16, one primitive per shape.
class Bf16Products;

/// Of one network: used by one thread at a time, after PrepareThread(). What a product needs is set
/// up when one of its shape is first asked for, and used from then on.
template <class Real>
class Products {
 public:
  /// Doubles know no precision but their own.
  explicit Products(ProductPrecision precision);
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  /// As gemm.h's with alpha 1 and `beta` 0 or 1: a pure function of the arguments in either
  /// precision. In kBf16 every element of a and b is first rounded to the nearest bfloat16, ties to
  /// even.
  void Multiply(Transpose transpose_a, Transpose transpose_b, int64_t m, int64_t n, int64_t k,
                const Real* a, int64_t lda, const Real* b, int64_t ldb, Real beta, Real* c,
                int64_t ldc, const Operands& operands = {});

  /// Weights among these elements have been written: what was rounded of them no longer holds.
  void Forget(const Real* weights, int64_t elements);

 private:
  std::unique_ptr<Bf16Products> bf16_;  ///< null: in the precision of Real
};

/// To the nearest bfloat16, ties to even; what is no number stays none.
void RoundToBf16(int64_t count, const float* from, uint16_t* to);

}  // namespace pipelag
