#include "runtime/network/kernels.h"

#include <algorithm>
#include <cmath>

#include "runtime/network/lanes.h"

namespace pipelag {
namespace {

constexpr double kNormEpsilon = 1e-5;

// 0.5 (1 + tanh u) = 1 / (1 + e^(−2u)): one exponential, and no cancellation on the negative side.
// −2u = x (kLinear + kCubic x²).
constexpr double kLinear = -1.5957691216057308;
constexpr double kCubic = 0.044715 * kLinear;

template <class Real>
inline Vector<Real> Gelu(Vector<Real> x) {
  const Vector<Real> power = x * (static_cast<Real>(kLinear) + static_cast<Real>(kCubic) * (x * x));
  return x / (static_cast<Real>(1) + Exp(power));
}

template <class Real>
inline Vector<Real> GeluDerivative(Vector<Real> x) {
  const Vector<Real> square = x * x;
  const Vector<Real> power = x * (static_cast<Real>(kLinear) + static_cast<Real>(kCubic) * square);
  const Vector<Real> slope = static_cast<Real>(kLinear) + static_cast<Real>(3 * kCubic) * square;
  const Vector<Real> e = Exp(power);
  const Vector<Real> s = static_cast<Real>(1) / (static_cast<Real>(1) + e);
  return s - x * s * (e * s) * slope;
}

template <class Real>
inline Real RowSum(int64_t cols, const Real* x) {
  Vector<Real> sum{};
  ForLanes<Real>(cols, [&](int64_t j, int64_t n) { sum += LoadSome(x + j, n, Real{0}); });
  return Sum<Real>(sum);
}

/// For the input, for the weights or for both: the same operations on the same numbers.
template <bool kInput, bool kWeight, class Real>
inline void NormBackwardOf(int64_t rows, int64_t cols, const Real* y_gradient, const Real* x,
                           const Real* gain, const Real* mean, const Real* inverse_deviation,
                           Real* x_gradient, Real* gain_gradient, Real* shift_gradient) {
  const Real count = static_cast<Real>(cols);
  for (int64_t i = 0; i < rows; ++i) {
    const Real* in = x + i * cols;
    const Real* dy = y_gradient + i * cols;
    const Real m = mean[i];
    const Real r = inverse_deviation[i];
    Vector<Real> sum{};
    Vector<Real> projection{};
    ForLanes<Real>(cols, [&](int64_t j, int64_t n) {
      const Vector<Real> g = LoadSome(dy + j, n, Real{0});
      const Vector<Real> normal = (LoadSome(in + j, n, m) - m) * r;
      if constexpr (kInput) {
        const Vector<Real> through = g * LoadSome(gain + j, n, Real{0});
        sum += through;
        projection += through * normal;
      }
      if constexpr (kWeight) {
        StoreSome<Real>(LoadSome(gain_gradient + j, n, Real{0}) + g * normal, n, gain_gradient + j);
        if (shift_gradient != nullptr) {
          StoreSome<Real>(LoadSome(shift_gradient + j, n, Real{0}) + g, n, shift_gradient + j);
        }
      }
    });
    if constexpr (kInput) {
      Real* dx = x_gradient + i * cols;
      const Real mean_gradient = Sum<Real>(sum) / count;
      const Real mean_projection = Sum<Real>(projection) / count;
      for (int64_t j = 0; j < cols; ++j) {
        const Real normal = (in[j] - m) * r;
        dx[j] += r * ((dy[j] * gain[j] - mean_gradient) - normal * mean_projection);
      }
    }
  }
}

template <bool kBias, class Real>
inline void GeluBackwardOf(int64_t rows, int64_t cols, const Real* x, Real* y_gradient,
                           Real* bias_gradient) {
  for (int64_t i = 0; i < rows; ++i) {
    const Real* in = x + i * cols;
    Real* gradient = y_gradient + i * cols;
    ForLanes<Real>(cols, [&](int64_t j, int64_t n) {
      const Vector<Real> g =
          LoadSome(gradient + j, n, Real{0}) * GeluDerivative<Real>(LoadSome(in + j, n, Real{0}));
      StoreSome<Real>(g, n, gradient + j);
      if constexpr (kBias) {
        StoreSome<Real>(LoadSome(bias_gradient + j, n, Real{0}) + g, n, bias_gradient + j);
      }
    });
  }
}

}  // namespace

template <class Real>
void EmbedForward(const Token* tokens, int64_t batch, int64_t sequence, int64_t cols,
                  const Real* token_table, const Real* position_table, Real* x) {
  for (int64_t i = 0; i < batch * sequence; ++i) {
    const Real* token = token_table + tokens[i] * cols;
    if (position_table == nullptr) {
      std::copy(token, token + cols, x + i * cols);
      continue;
    }
    const Real* position = position_table + i % sequence * cols;
    for (int64_t j = 0; j < cols; ++j) x[i * cols + j] = token[j] + position[j];
  }
}

template <class Real>
void EmbedBackward(const Token* tokens, int64_t batch, int64_t sequence, int64_t cols,
                   const Real* x_gradient, Real* token_gradient, Real* position_gradient) {
  for (int64_t i = 0; i < batch * sequence; ++i) {
    Real* token = token_gradient + tokens[i] * cols;
    if (position_gradient == nullptr) {
      for (int64_t j = 0; j < cols; ++j) token[j] += x_gradient[i * cols + j];
      continue;
    }
    Real* position = position_gradient + i % sequence * cols;
    for (int64_t j = 0; j < cols; ++j) {
      token[j] += x_gradient[i * cols + j];
      position[j] += x_gradient[i * cols + j];
    }
  }
}

template <class Real>
void AddBias(int64_t rows, int64_t cols, const Real* bias, Real* x) {
  if (bias == nullptr) return;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) x[i * cols + j] += bias[j];
  }
}

template <class Real>
void AddBiasAndResidual(int64_t rows, int64_t cols, const Real* bias, const Real* residual,
                        Real* x) {
  if (bias == nullptr) {
    for (int64_t i = 0; i < rows * cols; ++i) x[i] += residual[i];
    return;
  }
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) {
      x[i * cols + j] = (x[i * cols + j] + bias[j]) + residual[i * cols + j];
    }
  }
}

template <class Real>
void AddColumnSums(int64_t rows, int64_t cols, const Real* x, Real* sums) {
  if (sums == nullptr) return;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) sums[j] += x[i * cols + j];
  }
}

template <class Real>
void NormForward(int64_t rows, int64_t cols, const Real* x, const Real* gain, const Real* shift,
                 Real* mean, Real* inverse_deviation, Real* y) {
  const Real count = static_cast<Real>(cols);
  for (int64_t i = 0; i < rows; ++i) {
    const Real* in = x + i * cols;
    Real* out = y + i * cols;
    const Real m = RowSum(cols, in) / count;
    Vector<Real> squares{};
    ForLanes<Real>(cols, [&](int64_t j, int64_t n) {
      const Vector<Real> centred = LoadSome(in + j, n, m) - m;
      squares += centred * centred;
    });
    const Real variance = Sum<Real>(squares) / count;
    const Real r = 1 / std::sqrt(variance + static_cast<Real>(kNormEpsilon));
    if (shift != nullptr) {
      for (int64_t j = 0; j < cols; ++j) out[j] = (in[j] - m) * r * gain[j] + shift[j];
    } else {
      for (int64_t j = 0; j < cols; ++j) out[j] = (in[j] - m) * r * gain[j];
    }
    mean[i] = m;
    inverse_deviation[i] = r;
  }
}

template <class Real>
void NormBackward(int64_t rows, int64_t cols, const Real* y_gradient, const Real* x,
                  const Real* gain, const Real* mean, const Real* inverse_deviation,
                  Real* x_gradient, Real* gain_gradient, Real* shift_gradient) {
  NormBackwardOf<true, true>(rows, cols, y_gradient, x, gain, mean, inverse_deviation, x_gradient,
                             gain_gradient, shift_gradient);
}

template <class Real>
void NormBackwardInput(int64_t rows, int64_t cols, const Real* y_gradient, const Real* x,
                       const Real* gain, const Real* mean, const Real* inverse_deviation,
                       Real* x_gradient) {
  NormBackwardOf<true, false, Real>(rows, cols, y_gradient, x, gain, mean, inverse_deviation,
                                    x_gradient, nullptr, nullptr);
}

template <class Real>
void NormBackwardWeight(int64_t rows, int64_t cols, const Real* y_gradient, const Real* x,
                        const Real* mean, const Real* inverse_deviation, Real* gain_gradient,
                        Real* shift_gradient) {
  NormBackwardOf<false, true, Real>(rows, cols, y_gradient, x, nullptr, mean, inverse_deviation,
                                    nullptr, gain_gradient, shift_gradient);
}

template <class Real>
void GeluForward(int64_t rows, int64_t cols, const Real* x, Real* y) {
  ForLanes<Real>(rows * cols, [&](int64_t i, int64_t n) {
    StoreSome<Real>(Gelu<Real>(LoadSome(x + i, n, Real{0})), n, y + i);
  });
}

template <class Real>
void BiasGeluForward(int64_t rows, int64_t cols, const Real* bias, Real* x, Real* y) {
  if (bias == nullptr) return GeluForward(rows, cols, x, y);
  for (int64_t i = 0; i < rows; ++i) {
    Real* in = x + i * cols;
    Real* out = y + i * cols;
    ForLanes<Real>(cols, [&](int64_t j, int64_t n) {
      const Vector<Real> v = LoadSome(in + j, n, Real{0}) + LoadSome(bias + j, n, Real{0});
      StoreSome<Real>(v, n, in + j);
      StoreSome<Real>(Gelu<Real>(v), n, out + j);
    });
  }
}

template <class Real>
void BiasGeluBackward(int64_t rows, int64_t cols, const Real* x, Real* y_gradient,
                      Real* bias_gradient) {
  if (bias_gradient == nullptr) return GeluBackward(rows, cols, x, y_gradient);
  GeluBackwardOf<true>(rows, cols, x, y_gradient, bias_gradient);
}

template <class Real>
void GeluBackward(int64_t rows, int64_t cols, const Real* x, Real* y_gradient) {
  GeluBackwardOf<false, Real>(rows, cols, x, y_gradient, nullptr);
}

template <class Real>
void SwiGluForward(int64_t rows, int64_t cols, const Real* gate_and_up, Real* y) {
  for (int64_t i = 0; i < rows; ++i) {
    const Real* gate = gate_and_up + i * 2 * cols;
    const Real* up = gate + cols;
    Real* out = y + i * cols;
    ForLanes<Real>(cols, [&](int64_t j, int64_t n) {
      const Vector<Real> x = LoadSome(gate + j, n, Real{0});
      const Vector<Real> s = static_cast<Real>(1) / (static_cast<Real>(1) + Exp(-x));
      StoreSome<Real>(x * s * LoadSome(up + j, n, Real{0}), n, out + j);
    });
  }
}

template <class Real>
void SwiGluBackward(int64_t rows, int64_t cols, const Real* gate_and_up, const Real* y_gradient,
                    Real* gradient) {
  for (int64_t i = 0; i < rows; ++i) {
    const Real* gate = gate_and_up + i * 2 * cols;
    const Real* up = gate + cols;
    const Real* dy = y_gradient + i * cols;
    Real* gate_gradient = gradient + i * 2 * cols;
    Real* up_gradient = gate_gradient + cols;
    ForLanes<Real>(cols, [&](int64_t j, int64_t n) {
      const Vector<Real> x = LoadSome(gate + j, n, Real{0});
      const Vector<Real> g = LoadSome(dy + j, n, Real{0});
      const Vector<Real> e = Exp(-x);
      const Vector<Real> s = static_cast<Real>(1) / (static_cast<Real>(1) + e);
      // 1 − s = e · s, without cancellation.
      const Vector<Real> slope = s + x * s * (e * s);
      StoreSome<Real>(g * LoadSome(up + j, n, Real{0}) * slope, n, gate_gradient + j);
      StoreSome<Real>(g * (x * s), n, up_gradient + j);
    });
  }
}

template <class Real>
void CausalSoftmaxForward(int64_t size, Real scale, Real* scores) {
  for (int64_t t = 0; t < size; ++t) {
    Real* row = scores + t * size;
    const int64_t visible = t + 1;
    Vector<Real> most = Fill(row[0]);
    ForLanes<Real>(visible, [&](int64_t j, int64_t n) {
      const Vector<Real> v = LoadSome(row + j, n, row[0]);
      most = v > most ? v : most;
    });
    const Real largest = Largest<Real>(most);
    Vector<Real> sum{};
    ForLanes<Real>(visible, [&](int64_t j, int64_t n) {
      const Vector<Real> e = Exp((LoadSome(row + j, n, largest) - largest) * scale);
      StoreSome<Real>(e, n, row + j);
      sum += LoadSome(row + j, n, Real{0});
    });
    const Real inverse = 1 / Sum<Real>(sum);
    for (int64_t j = 0; j < visible; ++j) row[j] *= inverse;
    for (int64_t j = visible; j < size; ++j) row[j] = 0;
  }
}

template <class Real>
void CausalSoftmaxBackward(int64_t size, Real scale, const Real* probabilities, Real* gradient) {
  for (int64_t t = 0; t < size; ++t) {
    const Real* p = probabilities + t * size;
    Real* g = gradient + t * size;
    const int64_t visible = t + 1;
    Vector<Real> dot{};
    ForLanes<Real>(visible, [&](int64_t j, int64_t n) {
      dot += LoadSome(p + j, n, Real{0}) * LoadSome(g + j, n, Real{0});
    });
    const Real mean = Sum<Real>(dot);
    for (int64_t j = 0; j < visible; ++j) g[j] = p[j] * (g[j] - mean) * scale;
    for (int64_t j = visible; j < size; ++j) g[j] = 0;
  }
}

template <class Real>
double CrossEntropyForward(int64_t rows, int64_t cols, const Token* targets, Real* logits) {
  double loss = 0;
  for (int64_t i = 0; i < rows; ++i) {
    Real* row = logits + i * cols;
    Vector<Real> most = Fill(row[0]);
    ForLanes<Real>(cols, [&](int64_t j, int64_t n) {
      const Vector<Real> v = LoadSome(row + j, n, row[0]);
      most = v > most ? v : most;
    });
    const Real largest = Largest<Real>(most);
    // The target's own logit, before the row is overwritten: its probability may round to zero.
    const double target = static_cast<double>(row[targets[i]]) - static_cast<double>(largest);
    Vector<Real> sum{};
    ForLanes<Real>(cols, [&](int64_t j, int64_t n) {
      const Vector<Real> e = Exp(LoadSome(row + j, n, largest) - largest);
      StoreSome<Real>(e, n, row + j);
      sum += LoadSome(row + j, n, Real{0});
    });
    const Real total = Sum<Real>(sum);
    loss += std::log(static_cast<double>(total)) - target;
    const Real inverse = 1 / total;
    for (int64_t j = 0; j < cols; ++j) row[j] *= inverse;
  }
  return loss;
}

template <class Real>
void CrossEntropyBackward(int64_t rows, int64_t cols, const Real* probabilities,
                          const Token* targets, Real scale, Real* logit_gradient) {
  for (int64_t i = 0; i < rows; ++i) {
    const Real* p = probabilities + i * cols;
    Real* g = logit_gradient + i * cols;
    for (int64_t j = 0; j < cols; ++j) g[j] = p[j] * scale;
    g[targets[i]] = (p[targets[i]] - 1) * scale;
  }
}

// NOLINTBEGIN(bugprone-macro-parentheses): a type takes none.
#define PIPELAG_KERNELS(Real)                                                                      \
  template void EmbedForward(const Token*, int64_t, int64_t, int64_t, const Real*, const Real*,    \
                             Real*);                                                               \
  template void EmbedBackward(const Token*, int64_t, int64_t, int64_t, const Real*, Real*, Real*); \
  template void AddBias(int64_t, int64_t, const Real*, Real*);                                     \
  template void AddBiasAndResidual(int64_t, int64_t, const Real*, const Real*, Real*);             \
  template void AddColumnSums(int64_t, int64_t, const Real*, Real*);                               \
  template void NormForward(int64_t, int64_t, const Real*, const Real*, const Real*, Real*, Real*, \
                            Real*);                                                                \
  template void NormBackward(int64_t, int64_t, const Real*, const Real*, const Real*, const Real*, \
                             const Real*, Real*, Real*, Real*);                                    \
  template void NormBackwardInput(int64_t, int64_t, const Real*, const Real*, const Real*,         \
                                  const Real*, const Real*, Real*);                                \
  template void NormBackwardWeight(int64_t, int64_t, const Real*, const Real*, const Real*,        \
                                   const Real*, Real*, Real*);                                     \
  template void GeluForward(int64_t, int64_t, const Real*, Real*);                                 \
  template void SwiGluForward(int64_t, int64_t, const Real*, Real*);                               \
  template void SwiGluBackward(int64_t, int64_t, const Real*, const Real*, Real*);                 \
  template void BiasGeluForward(int64_t, int64_t, const Real*, Real*, Real*);                      \
  template void BiasGeluBackward(int64_t, int64_t, const Real*, Real*, Real*);                     \
  template void GeluBackward(int64_t, int64_t, const Real*, Real*);                                \
  template void CausalSoftmaxForward(int64_t, Real, Real*);                                        \
  template void CausalSoftmaxBackward(int64_t, Real, const Real*, Real*);                          \
  template double CrossEntropyForward(int64_t, int64_t, const Token*, Real*);                      \
  template void CrossEntropyBackward(int64_t, int64_t, const Real*, const Token*, Real, Real*);

PIPELAG_KERNELS(float)
PIPELAG_KERNELS(double)

#undef PIPELAG_KERNELS
// NOLINTEND(bugprone-macro-parentheses)

}  // namespace pipelag
