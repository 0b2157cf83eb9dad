// RMSNorm itself, and the choice between it and LayerNorm.
#include "runtime/network/norm.h"

#include <cmath>

#include "runtime/network/kernels.h"
#include "runtime/network/lanes.h"

namespace pipelag {
namespace {

constexpr double kEpsilon = 1e-5;

template <class Real>
void RmsForward(int64_t rows, int64_t cols, const Real* x, const Real* gain,
                Real* inverse_deviation, Real* y) {
  for (int64_t i = 0; i < rows; ++i) {
    const Real* in = x + i * cols;
    Real* out = y + i * cols;
    Vector<Real> squares{};
    ForLanes<Real>(cols, [&](int64_t j, int64_t n) {
      const Vector<Real> v = LoadSome(in + j, n, Real{0});
      squares += v * v;
    });
    const Real mean_square = Sum<Real>(squares) / static_cast<Real>(cols);
    const Real r = 1 / std::sqrt(mean_square + static_cast<Real>(kEpsilon));
    for (int64_t j = 0; j < cols; ++j) out[j] = in[j] * r * gain[j];
    inverse_deviation[i] = r;
  }
}

template <class Real>
void RmsBackwardInput(int64_t rows, int64_t cols, const Real* y_gradient, const Real* x,
                      const Real* gain, const Real* inverse_deviation, Real* x_gradient) {
  for (int64_t i = 0; i < rows; ++i) {
    const Real* in = x + i * cols;
    const Real* dy = y_gradient + i * cols;
    Real* dx = x_gradient + i * cols;
    const Real r = inverse_deviation[i];
    Vector<Real> projection{};
    ForLanes<Real>(cols, [&](int64_t j, int64_t n) {
      const Vector<Real> through = LoadSome(dy + j, n, Real{0}) * LoadSome(gain + j, n, Real{0});
      projection += through * (LoadSome(in + j, n, Real{0}) * r);
    });
    const Real mean_projection = Sum<Real>(projection) / static_cast<Real>(cols);
    for (int64_t j = 0; j < cols; ++j) dx[j] += r * (dy[j] * gain[j] - in[j] * r * mean_projection);
  }
}

template <class Real>
void RmsBackwardWeight(int64_t rows, int64_t cols, const Real* y_gradient, const Real* x,
                       const Real* inverse_deviation, Real* gain_gradient) {
  for (int64_t i = 0; i < rows; ++i) {
    const Real* in = x + i * cols;
    const Real* dy = y_gradient + i * cols;
    const Real r = inverse_deviation[i];
    for (int64_t j = 0; j < cols; ++j) gain_gradient[j] += dy[j] * (in[j] * r);
  }
}

}  // namespace

template <class Real>
void Norm<Real>::Forward(const Real* x, const Real* gain, const Real* shift, Real* mean,
                         Real* inverse_deviation, Real* y) const {
  if (kind == NormChoice::kRms) return RmsForward(rows, cols, x, gain, inverse_deviation, y);
  NormForward(rows, cols, x, gain, shift, mean, inverse_deviation, y);
}

template <class Real>
void Norm<Real>::Backward(const Real* y_gradient, const Real* x, const Real* gain, const Real* mean,
                          const Real* inverse_deviation, Real* x_gradient, Real* gain_gradient,
                          Real* shift_gradient) const {
  if (kind == NormChoice::kRms) {
    RmsBackwardInput(rows, cols, y_gradient, x, gain, inverse_deviation, x_gradient);
    RmsBackwardWeight(rows, cols, y_gradient, x, inverse_deviation, gain_gradient);
    return;
  }
  NormBackward(rows, cols, y_gradient, x, gain, mean, inverse_deviation, x_gradient, gain_gradient,
               shift_gradient);
}

template <class Real>
void Norm<Real>::BackwardInput(const Real* y_gradient, const Real* x, const Real* gain,
                               const Real* mean, const Real* inverse_deviation,
                               Real* x_gradient) const {
  if (kind == NormChoice::kRms) {
    return RmsBackwardInput(rows, cols, y_gradient, x, gain, inverse_deviation, x_gradient);
  }
  NormBackwardInput(rows, cols, y_gradient, x, gain, mean, inverse_deviation, x_gradient);
}

template <class Real>
void Norm<Real>::BackwardWeight(const Real* y_gradient, const Real* x, const Real* mean,
                                const Real* inverse_deviation, Real* gain_gradient,
                                Real* shift_gradient) const {
  if (kind == NormChoice::kRms) {
    return RmsBackwardWeight(rows, cols, y_gradient, x, inverse_deviation, gain_gradient);
  }
  NormBackwardWeight(rows, cols, y_gradient, x, mean, inverse_deviation, gain_gradient,
                     shift_gradient);
}

template struct Norm<float>;
template struct Norm<double>;

}  // namespace pipelag
