// Matrix products around others, of which a test sees each.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "runtime/cuda/products.h"

namespace pipelag::cuda {

class ProductsAround : public Products {
 public:
  explicit ProductsAround(std::unique_ptr<Products> inner) : inner_(std::move(inner)) {}
  size_t workspace_bytes() const override { return inner_->workspace_bytes(); }
  void UseWorkspace(void* workspace) override { inner_->UseWorkspace(workspace); }
  bool Multiply(Stream stream, const Product<float, float>& product) override {
    return Do(stream, product);
  }
  bool Multiply(Stream stream, const Product<Bfloat16, Bfloat16>& product) override {
    return Do(stream, product);
  }
  bool Multiply(Stream stream, const Product<Bfloat16, float>& product) override {
    return Do(stream, product);
  }

 protected:
  struct Sizes {
    int64_t m, n, k, lda, ldb, ldd;
    Epilogue epilogue;
  };
  /// Every product comes by here; `multiply` has the inner one do it.
  virtual bool See(const Sizes& sizes, const std::function<bool()>& multiply) = 0;

 private:
  template <class In, class Out>
  bool Do(Stream stream, const Product<In, Out>& product) {
    return See(
        {product.m, product.n, product.k, product.lda, product.ldb, product.ldd, product.epilogue},
        [&] { return inner_->Multiply(stream, product); });
  }

  std::unique_ptr<Products> inner_;
};

}  // namespace pipelag::cuda
