// Matrix products by cuBLASLt. Knows no network.
#pragma once

#include <memory>

#include "runtime/cuda/products.h"

namespace pipelag::cuda {

/// On the calling thread's current device. fp32 products are fp32 throughout (no TF32), bf16 ones
/// sum in fp32. The algorithm for each shape, layout, alignment and epilogue is the first that the
/// library suggests, asked once, and none is taken whose partial sums meet in an order that timing
/// decides. Throws Error if there is no cuBLASLt to be had.
std::unique_ptr<Products> MakeCublasProducts();

}  // namespace pipelag::cuda
