// Linear layers as matrix products. x is (rows, inputs), y (rows, outputs), w (outputs, inputs);
// `ldy` is the distance between the rows of y, which may be a part of wider ones. Knows pointers
// and sizes only. For use in .cpp files.
#pragma once

#include <cstdint>

#include "runtime/network/products.h"

namespace pipelag {

/// y = x · wᵀ.
template <class Real>
void LinearForward(Products<Real>& by, int64_t rows, int64_t inputs, int64_t outputs, const Real* x,
                   const Real* w, Real* y, int64_t ldy) {
  by.Multiply(Transpose::kNo, Transpose::kYes, rows, outputs, inputs, x, inputs, w, inputs, 0, y,
              ldy, {.b_weights = true});
}
template <class Real>
void LinearForward(Products<Real>& by, int64_t rows, int64_t inputs, int64_t outputs, const Real* x,
                   const Real* w, Real* y) {
  LinearForward(by, rows, inputs, outputs, x, w, y, outputs);
}

/// x_gradient = y_gradient · w, or added to `beta` times what is there.
template <class Real>
void LinearBackwardInput(Products<Real>& by, int64_t rows, int64_t inputs, int64_t outputs,
                         const Real* y_gradient, int64_t ldy, const Real* w, Real beta,
                         Real* x_gradient, Gradient gradient = Gradient::kNew) {
  by.Multiply(Transpose::kNo, Transpose::kNo, rows, inputs, outputs, y_gradient, ldy, w, inputs,
              beta, x_gradient, inputs,
              {.a_as_before = gradient == Gradient::kAsBefore, .b_weights = true});
}
template <class Real>
void LinearBackwardInput(Products<Real>& by, int64_t rows, int64_t inputs, int64_t outputs,
                         const Real* y_gradient, const Real* w, Real* x_gradient,
                         Gradient gradient = Gradient::kNew) {
  LinearBackwardInput(by, rows, inputs, outputs, y_gradient, outputs, w, Real{0}, x_gradient,
                      gradient);
}

/// w_gradient += y_gradientᵀ · x.
template <class Real>
void LinearBackwardWeight(Products<Real>& by, int64_t rows, int64_t inputs, int64_t outputs,
                          const Real* y_gradient, int64_t ldy, const Real* x, Real* w_gradient,
                          Gradient gradient = Gradient::kNew) {
  by.Multiply(Transpose::kYes, Transpose::kNo, outputs, inputs, rows, y_gradient, ldy, x, inputs, 1,
              w_gradient, inputs, {.a_as_before = gradient == Gradient::kAsBefore});
}
template <class Real>
void LinearBackwardWeight(Products<Real>& by, int64_t rows, int64_t inputs, int64_t outputs,
                          const Real* y_gradient, const Real* x, Real* w_gradient) {
  LinearBackwardWeight(by, rows, inputs, outputs, y_gradient, outputs, x, w_gradient);
}

}  // namespace pipelag
