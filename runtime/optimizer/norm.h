// Norms of gradients, in double and in one fixed order, so that the clip factor is the same to the
// last bit in every partition. Knows who adds up what, not who sends it to whom.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/network/layout.h"

namespace pipelag {

/// Σ values² in double, in an order that depends on `elements` only.
double SquaredNorm(int64_t elements, const float* values);

/// Of each tensor of a stage but copies, in the layout's order: the stage's part of the global
/// list.
std::vector<double> SquaredNorms(const StageLayout& layout, const float* gradients);

/// Of all gradients, from the squared norms of all tensors in global order, each once; they are
/// added in that order.
double GlobalNorm(std::span<const double> squared_norms);

/// The factor that brings the norm of all gradients down to `max_norm` (> 0), 1 if it is not above.
/// `squared_norms` as above.
float ClipFactor(std::span<const double> squared_norms, double max_norm);

/// gradients *= factor.
void ScaleGradients(const StageLayout& layout, float factor, float* gradients);

}  // namespace pipelag
