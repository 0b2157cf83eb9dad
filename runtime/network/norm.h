// Normalisation of the rows of the residual stream, of the kind that a network has. Knows pointers
// and sizes only.
#pragma once

#include <cstdint>

#include "models/network.h"

namespace pipelag {

/// LayerNorm as in kernels.h, or RMSNorm: y = x / sqrt(mean of x² + 1e-5) · gain (Zhang, Sennrich,
/// arXiv 1910.07467, equation 4). Each pass works on `rows` rows of `cols`. `shift` and its
/// gradient may be null; RMSNorm reads and writes neither them nor `mean`.
template <class Real>
struct Norm {
  NormChoice kind;
  int64_t rows;
  int64_t cols;

  /// Keeps mean and inverse deviation (1 / sqrt(…)) of each row for the backward.
  void Forward(const Real* x, const Real* gain, const Real* shift, Real* mean,
               Real* inverse_deviation, Real* y) const;

  /// Adds to x_gradient, since x also runs past the norm on the residual stream.
  void Backward(const Real* y_gradient, const Real* x, const Real* gain, const Real* mean,
                const Real* inverse_deviation, Real* x_gradient, Real* gain_gradient,
                Real* shift_gradient) const;

  /// The two halves of Backward, to the last bit the same.
  void BackwardInput(const Real* y_gradient, const Real* x, const Real* gain, const Real* mean,
                     const Real* inverse_deviation, Real* x_gradient) const;
  void BackwardWeight(const Real* y_gradient, const Real* x, const Real* mean,
                      const Real* inverse_deviation, Real* gain_gradient,
                      Real* shift_gradient) const;
};

extern template struct Norm<float>;
extern template struct Norm<double>;

}  // namespace pipelag
