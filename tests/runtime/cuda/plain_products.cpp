#include "tests/runtime/cuda/plain_products.h"

#include <cmath>
#include <vector>

#include "models/error.h"

namespace pipelag::cuda {
namespace {

template <class T>
std::vector<float> Floats(const T* from, int64_t rows, int64_t cols, int64_t ld) {
  std::vector<float> to;
  to.reserve(static_cast<size_t>(rows * cols));
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) to.push_back(ToFloat(from[i * ld + j]));
  }
  return to;
}

float Gelu(float x) {
  const float inner = 0.7978845608f * (x + 0.044715f * x * x * x);
  return 0.5f * x * (1 + std::tanh(inner));
}

float GeluDerivative(float x) {
  const float t = std::tanh(0.7978845608f * (x + 0.044715f * x * x * x));
  const float slope = 0.7978845608f * (1 + 3 * 0.044715f * x * x);
  return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * slope;
}

class PlainProducts : public Products {
 public:
  explicit PlainProducts(bool fuses) : fuses_(fuses) {}

  size_t workspace_bytes() const override { return 1000; }
  void UseWorkspace(void* workspace) override { CHECK(workspace != nullptr); }

  bool Multiply(Stream /*stream*/, const Product<float, float>& product) override {
    return Do(product);
  }
  bool Multiply(Stream /*stream*/, const Product<Bfloat16, Bfloat16>& product) override {
    return Do(product);
  }
  bool Multiply(Stream /*stream*/, const Product<Bfloat16, float>& product) override {
    return Do(product);
  }

 private:
  template <class In, class Out>
  bool Do(const Product<In, Out>& p) const {
    if (!fuses_ && p.epilogue != Epilogue::kNone) return false;
    const bool flip_a = p.transpose_a == Transpose::kYes;
    const bool flip_b = p.transpose_b == Transpose::kYes;
    const auto a = Floats(p.a, flip_a ? p.k : p.m, flip_a ? p.m : p.k, p.lda);
    const auto b = Floats(p.b, flip_b ? p.n : p.k, flip_b ? p.k : p.n, p.ldb);
    std::vector<float> d(static_cast<size_t>(p.m * p.n));
    if (p.beta != 0) d = Floats(p.c, p.m, p.n, p.ldd);
    pipelag::Multiply<float>(p.transpose_a, p.transpose_b, p.m, p.n, p.k, p.alpha, a.data(),
                             flip_a ? p.m : p.k, b.data(), flip_b ? p.k : p.n, p.beta, d.data(),
                             p.n);
    for (int64_t i = 0; i < p.m; ++i) {
      for (int64_t j = 0; j < p.n; ++j) {
        const int64_t at = i * p.ldd + j;
        p.d[at] = FromFloat<Out>(Finished(p, d[static_cast<size_t>(i * p.n + j)], j, at));
      }
    }
    for (int64_t i = 0; p.epilogue == Epilogue::kRowSums && i < p.m; ++i) {
      float sum = 0;
      for (int64_t l = 0; l < p.k; ++l) {
        sum += a[static_cast<size_t>(flip_a ? l * p.m + i : i * p.k + l)];
      }
      p.row_sums[i] = sum;
    }
    return true;
  }

  /// One element behind the sum; writes its aux.
  template <class In, class Out>
  static float Finished(const Product<In, Out>& p, float sum, int64_t j, int64_t at) {
    if (p.epilogue == Epilogue::kBias || p.epilogue == Epilogue::kBiasGelu) {
      sum += ToFloat(p.bias[j]);
    }
    if (p.epilogue == Epilogue::kGelu || p.epilogue == Epilogue::kBiasGelu) {
      p.aux[at] = FromFloat<Out>(sum);
      return Gelu(sum);
    }
    if (p.epilogue == Epilogue::kGeluGradient) return sum * GeluDerivative(ToFloat(p.aux[at]));
    return sum;
  }

  bool fuses_;
};

}  // namespace

std::unique_ptr<Products> MakePlainProducts(bool fuses) {
  return std::make_unique<PlainProducts>(fuses);
}

}  // namespace pipelag::cuda
