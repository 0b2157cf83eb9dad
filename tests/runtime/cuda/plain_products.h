// Matrix products on the CPU behind the interface of those on a device: with all epilogues in one,
// or none, for either path of who uses them.
#pragma once

#include <memory>

#include "runtime/cuda/products.h"

namespace pipelag::cuda {

/// In float, whatever the matrices hold; results are rounded once. `fuses`: GELU is taken of what
/// has not been rounded yet, as a library may do.
std::unique_ptr<Products> MakePlainProducts(bool fuses);

}  // namespace pipelag::cuda
