// Cases of linear layers and of the products that optimizers take, for whatever does the products.
#pragma once

#include <vector>

#include "runtime/cuda/products.h"
#include "tests/runtime/cuda/kernel_case.h"

namespace pipelag::cuda {

/// In float and in bf16, of sizes that fit packs and of ones that do not. `products`, which has its
/// workspace, is borrowed.
std::vector<NamedCase> LinearCases(Products& products);

}  // namespace pipelag::cuda
