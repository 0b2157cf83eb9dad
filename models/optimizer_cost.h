// What optimizers and delay corrections cost beyond the gradient: state, arithmetic and memory
// traffic of one update of one tensor. Knows names and shapes only, no tensors and no hardware.
#pragma once

#include <cstdint>
#include <string_view>

namespace pipelag {

/// One tensor, as optimizers tell them apart.
enum class ParameterKind {
  kMatrix,     ///< of a linear layer inside a block
  kEmbedding,  ///< an embedding, or the head
  kVector,     ///< a bias or a normalisation's parameter
};
struct ParameterShape {
  int64_t rows = 1;
  int64_t cols = 1;
  ParameterKind kind = ParameterKind::kMatrix;

  int64_t elements() const { return rows * cols; }
};

/// Of one update on average. State is in fp32 numbers kept from one update to the next; weights,
/// gradients and stashed versions are not in it.
struct UpdateCost {
  int64_t state_floats = 0;
  double flops = 0;          ///< multiplications and additions, 1 each; matrix products 2 m n k
  int64_t floats_moved = 0;  ///< read and written by elementwise passes
  double matrix_flops = 0;   ///< of `flops`, those in matrix products and factorisations

  UpdateCost& operator+=(const UpdateCost& other);
  bool operator==(const UpdateCost&) const = default;
};

/// The whole update, weight decay and writing the new weights included. Throws Error naming the
/// nearest known name if there is no such optimizer. `basis_updates`: between two refreshes of
/// SOAP's basis.
UpdateCost OptimizerCost(std::string_view optimizer, const ParameterShape& shape,
                         int basis_updates = 10);

/// What `correction` adds to it on a stage of that gradient delay; nothing without delay, except
/// that basis rotation replaces AdamW at any. Throws Error as above.
UpdateCost CorrectionCost(std::string_view correction, const ParameterShape& shape, int delay,
                          int basis_updates = 10);

}  // namespace pipelag
