// What is asked of cuBLASLt, held against a library that does on the host what its manual says: row
// by row against column by column, epilogues, alignments.
#include "runtime/cuda/cublas_products.h"

#include <gtest/gtest.h>

#include "tests/runtime/cublas/fake_cublas_lt.h"
#include "tests/runtime/cuda/emulated_memory.h"
#include "tests/runtime/cuda/linear_cases.h"

namespace pipelag::cuda {
namespace {

class CublasProductsTest : public testing::Test {
 protected:
  CublasProductsTest() : products_(MakeCublasProducts()) {
    TheFakeCublasLt() = {};
    products_->UseWorkspace(&workspace_);
  }

  void ExpectLinearCases() {
    EmulatedMemory memory;
    for (const NamedCase& named : LinearCases(*products_)) {
      KernelCase linear = named.make(memory);
      linear.Prepare();
      linear.launch();
      for (const Deviation& deviation : linear.Compare()) {
        EXPECT_LE(deviation.error, deviation.tolerance) << named.name << " " << deviation.of;
      }
    }
  }

  std::unique_ptr<Products> products_;
  char workspace_ = 0;
};

TEST_F(CublasProductsTest, FollowTheManual) { ExpectLinearCases(); }

TEST_F(CublasProductsTest, DoWithoutEpilogues) {
  TheFakeCublasLt().missing = {CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_GELU_AUX,
                               CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DGELU,
                               CUBLASLT_EPILOGUE_BGRADB};
  ExpectLinearCases();
}

TEST_F(CublasProductsTest, AskOnceForEachKind) {
  alignas(256) float numbers[64] = {};
  Product<float, float> product = {.m = 2, .n = 2, .k = 2};
  product.a = numbers;
  product.b = numbers + 16;
  product.d = numbers + 32;
  product.lda = product.ldb = product.ldd = 2;
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(products_->Multiply(nullptr, product));
  EXPECT_EQ(TheFakeCublasLt().searches, 1);
  // Where a tensor lies makes no difference, as long as it is where tensors lie.
  product.alpha = 3;
  product.b = numbers + 20;
  product.d = numbers + 48;
  EXPECT_TRUE(products_->Multiply(nullptr, product));
  EXPECT_EQ(TheFakeCublasLt().searches, 1);
  product.b = numbers + 34;  // less aligned
  EXPECT_TRUE(products_->Multiply(nullptr, product));
  product.ldd = 4;
  EXPECT_TRUE(products_->Multiply(nullptr, product));
  EXPECT_EQ(TheFakeCublasLt().searches, 3);
  EXPECT_EQ(TheFakeCublasLt().products, 6);
}

}  // namespace
}  // namespace pipelag::cuda
