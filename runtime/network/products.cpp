#include "runtime/network/products.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>
#include <vector>

#include "models/error.h"

namespace pipelag {
namespace {

using dnnl::memory;

/// A matrix as it lies in memory, without gaps.
memory::desc Packed(int64_t rows, int64_t cols, Transpose transposed) {
  const memory::dims strides =
      transposed == Transpose::kYes ? memory::dims{1, rows} : memory::dims{cols, 1};
  return {{rows, cols}, memory::data_type::bf16, strides};
}

}  // namespace

class Bf16Products {
 public:
  struct Shape {
    Transpose transpose_a;
    Transpose transpose_b;
    int64_t m, n, k, ldc;
    bool adds;
    bool operator==(const Shape&) const = default;
  };

  void Multiply(const Shape& shape, const float* a, int64_t lda, const float* b, int64_t ldb,
                float* c, const Operands& operands) {
    const bool ta = shape.transpose_a == Transpose::kYes;
    const bool tb = shape.transpose_b == Transpose::kYes;
    Prepared& prepared = For(shape);
    const Stored left{a, ta ? shape.k : shape.m, ta ? shape.m : shape.k, lda};
    const Stored right{b, tb ? shape.n : shape.k, tb ? shape.k : shape.n, ldb};
    if (operands.a_as_before) {
      CHECK(left == left_);
    } else {
      Round(left, rounded_left_);
      left_ = left;
    }
    prepared.a.set_data_handle(rounded_left_.data());
    prepared.b.set_data_handle(operands.b_weights ? OfWeights(right)
                                                  : Round(right, rounded_right_));
    prepared.c.set_data_handle(c);
    prepared.product.execute(stream_, prepared.arguments);
    stream_.wait();
  }

  void Forget(const float* weights, int64_t elements) {
    for (auto it = weights_.lower_bound(weights);
         it != weights_.end() && it->first < weights + elements; ++it) {
      it->second.holds = false;
    }
  }

 private:
  struct Prepared {
    Shape shape;
    dnnl::matmul product;
    memory a, b, c;
    std::unordered_map<int, memory> arguments;
  };

  Prepared& For(const Shape& shape) {
    const auto found = std::find_if(prepared_.begin(), prepared_.end(),
                                    [&](const auto& known) { return known->shape == shape; });
    if (found != prepared_.end()) return **found;
    const memory::desc a = Packed(shape.m, shape.k, shape.transpose_a);
    const memory::desc b = Packed(shape.k, shape.n, shape.transpose_b);
    const memory::desc c({shape.m, shape.n}, memory::data_type::f32, {shape.ldc, 1});
    dnnl::primitive_attr attributes;
    if (shape.adds) {
      dnnl::post_ops operations;
      operations.append_sum(1.0f);
      attributes.set_post_ops(operations);
    }
    const dnnl::matmul::primitive_desc description({a, b, c}, attributes, engine_);
    auto fresh = std::make_unique<Prepared>(Prepared{shape,
                                                     dnnl::matmul(description),
                                                     memory(a, engine_, nullptr),
                                                     memory(b, engine_, nullptr),
                                                     memory(c, engine_, nullptr),
                                                     {}});
    fresh->arguments = {
        {DNNL_ARG_SRC, fresh->a}, {DNNL_ARG_WEIGHTS, fresh->b}, {DNNL_ARG_DST, fresh->c}};
    prepared_.push_back(std::move(fresh));
    return *prepared_.back();
  }

  /// A matrix as it lies in memory, row by row.
  struct Stored {
    const float* values = nullptr;
    int64_t rows = 0, cols = 0, ld = 0;
    bool operator==(const Stored&) const = default;
  };

  /// Without the gaps between rows.
  static void* Round(const Stored& from, std::vector<uint16_t>& to) {
    const auto size = static_cast<size_t>(from.rows * from.cols);
    if (to.size() < size) to.resize(size);
    if (from.ld == from.cols) {
      RoundToBf16(from.rows * from.cols, from.values, to.data());
    } else {
      for (int64_t i = 0; i < from.rows; ++i) {
        RoundToBf16(from.cols, from.values + i * from.ld, to.data() + i * from.cols);
      }
    }
    return to.data();
  }

  void* OfWeights(const Stored& matrix) {
    CHECK(matrix.ld == matrix.cols);
    Weights& weights = weights_[matrix.values];
    if (!weights.holds) Round(matrix, weights.rounded);
    weights.holds = true;
    return weights.rounded.data();
  }

  struct Weights {
    std::vector<uint16_t> rounded;
    bool holds = false;
  };

  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  std::vector<std::unique_ptr<Prepared>> prepared_;
  Stored left_;
  std::vector<uint16_t> rounded_left_;
  std::vector<uint16_t> rounded_right_;
  std::map<const float*, Weights> weights_;  // by where they lie
};

void RoundToBf16(int64_t count, const float* from, uint16_t* to) {
  for (int64_t i = 0; i < count; ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, from + i, sizeof bits);
    const uint32_t nearest = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
    const uint32_t quiet = (bits >> 16) | 0x40U;
    to[i] = static_cast<uint16_t>((bits & 0x7fffffffU) > 0x7f800000U ? quiet : nearest);
  }
}

void CheckPrecision(ProductPrecision precision) {
  if (precision == ProductPrecision::kFp32) return;
  const float one = 1;
  float product = 0;
  try {
    Bf16Products().Multiply({Transpose::kNo, Transpose::kNo, 1, 1, 1, 1, false}, &one, 1, &one, 1,
                            &product, {});
  } catch (const dnnl::error& error) {
    throw Error(fmt::format(
        "oneDNN has no products of bfloat16 for this processor ({}): train in fp32", error.what()));
  }
  CHECK(product == 1);
}

template <class Real>
Products<Real>::~Products() = default;

template <>
Products<float>::Products(ProductPrecision precision) {
  if (precision == ProductPrecision::kBf16) bf16_ = std::make_unique<Bf16Products>();
}

template <>
Products<double>::Products(ProductPrecision precision) {
  CHECK(precision == ProductPrecision::kFp32);
}

template <>
void Products<float>::Multiply(Transpose transpose_a, Transpose transpose_b, int64_t m, int64_t n,
                               int64_t k, const float* a, int64_t lda, const float* b, int64_t ldb,
                               float beta, float* c, int64_t ldc, const Operands& operands) {
  if (!bf16_) {
    pipelag::Multiply<float>(transpose_a, transpose_b, m, n, k, 1, a, lda, b, ldb, beta, c, ldc);
    return;
  }
  CHECK(beta == 0 || beta == 1);
  try {
    bf16_->Multiply({transpose_a, transpose_b, m, n, k, ldc, beta == 1}, a, lda, b, ldb, c,
                    operands);
  } catch (const dnnl::error& error) {
    throw Error(fmt::format("a product of bfloat16 failed in oneDNN: {}", error.what()));
  }
}

template <>
void Products<double>::Multiply(Transpose transpose_a, Transpose transpose_b, int64_t m, int64_t n,
                                int64_t k, const double* a, int64_t lda, const double* b,
                                int64_t ldb, double beta, double* c, int64_t ldc,
                                const Operands& /*operands*/) {
  pipelag::Multiply<double>(transpose_a, transpose_b, m, n, k, 1, a, lda, b, ldb, beta, c, ldc);
}

template <>
void Products<float>::Forget(const float* weights, int64_t elements) {
  if (bf16_) bf16_->Forget(weights, elements);
}

template <>
void Products<double>::Forget(const double* /*weights*/, int64_t /*elements*/) {}

template class Products<float>;
template class Products<double>;

}  // namespace pipelag
