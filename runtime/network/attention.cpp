// Attention as products per sequence and head.
#include "runtime/network/attention.h"

#include <cmath>

#include "runtime/network/kernels.h"
#include "runtime/network/linear.h"

namespace pipelag {

template <class Real>
Attention<Real>::Attention(const NetworkShape& shape, int64_t batch, Products<Real>& products)
    : products_(&products),
      batch_(batch),
      sequence_(shape.sequence),
      heads_(shape.heads),
      kv_heads_(shape.kv_heads()),
      cols_(shape.hidden),
      kv_cols_(shape.kv_size()) {
  scores_.resize(static_cast<size_t>(sequence_ * sequence_));
  if (shape.positions != PositionChoice::kRotary) return;
  rotary_ = MakeRotaryTables<Real>(sequence_, shape.head_size());
}

template <class Real>
template <class Body>
void Attention<Real>::ForMatrices(const AttentionTensors& at, Body body) const {
  if (at.key < 0) return body(at.query, at.query_bias, int64_t{0}, qkv_cols());
  body(at.query, at.query_bias, int64_t{0}, cols_);
  body(at.key, at.key_bias, cols_, kv_cols_);
  body(at.value, at.value_bias, cols_ + kv_cols_, kv_cols_);
}

template <class Real>
void Attention<Real>::Rotate(Real direction, Real* qkv) const {
  if (rotary_.cosines.empty()) return;
  const int64_t d = cols_ / heads_;
  const int64_t half = d / 2;
  for (int64_t row = 0; row < batch_ * sequence_; ++row) {
    const Real* cosines = rotary_.cosines.data() + row % sequence_ * half;
    const Real* sines = rotary_.sines.data() + row % sequence_ * half;
    for (int64_t h = 0; h < heads_ + kv_heads_; ++h) {
      Real* low = qkv + row * qkv_cols() + h * d;
      Real* high = low + half;
      for (int64_t i = 0; i < half; ++i) {
        const Real x = low[i];
        const Real y = high[i];
        const Real s = direction * sines[i];
        low[i] = x * cosines[i] - y * s;
        high[i] = y * cosines[i] + x * s;
      }
    }
  }
}

template <class Real>
void Attention<Real>::Forward(const Real* weights, const AttentionTensors& at, const Real* x,
                              Real* qkv, Real* probabilities, Real* attended) const {
  const int64_t rows = batch_ * sequence_;
  const int64_t stride = qkv_cols();
  ForMatrices(at, [&](int64_t w, int64_t /*bias*/, int64_t first, int64_t cols) {
    LinearForward(*products_, rows, cols_, cols, x, weights + w, qkv + first, stride);
  });
  if (at.query_bias >= 0) {
    ForMatrices(at, [&](int64_t /*w*/, int64_t bias, int64_t first, int64_t cols) {
      for (int64_t i = 0; i < rows; ++i) AddBias(1, cols, weights + bias, qkv + i * stride + first);
    });
  }
  Rotate(1, qkv);
  Probabilities(qkv, probabilities);
  const int64_t t = sequence_;
  const int64_t d = cols_ / heads_;
  for (int64_t b = 0; b < batch_; ++b) {
    for (int64_t h = 0; h < heads_; ++h) {
      const Real* v = qkv + b * t * stride + cols_ + kv_cols_ + h * kv_heads_ / heads_ * d;
      Multiply<Real>(Transpose::kNo, Transpose::kNo, t, d, t, 1,
                     probabilities + (b * heads_ + h) * t * t, t, v, stride, 0,
                     attended + b * t * cols_ + h * d, cols_);
    }
  }
}

template <class Real>
void Attention<Real>::Probabilities(const Real* qkv, Real* probabilities) const {
  const int64_t t = sequence_;
  const int64_t d = cols_ / heads_;
  const int64_t stride = qkv_cols();
  const Real scale = static_cast<Real>(1 / std::sqrt(static_cast<double>(d)));
  for (int64_t b = 0; b < batch_; ++b) {
    for (int64_t h = 0; h < heads_; ++h) {
      const Real* q = qkv + b * t * stride + h * d;
      const Real* k = qkv + b * t * stride + cols_ + h * kv_heads_ / heads_ * d;
      Real* p = probabilities + (b * heads_ + h) * t * t;
      Multiply<Real>(Transpose::kNo, Transpose::kYes, t, t, d, 1, q, stride, k, stride, 0, p, t);
      CausalSoftmaxForward(t, scale, p);
    }
  }
}

template <class Real>
void Attention<Real>::CoreBackward(const Real* qkv, const Real* probabilities,
                                   const Real* attended_gradient, Real* qkv_gradient) {
  const int64_t t = sequence_;
  const int64_t d = cols_ / heads_;
  const int64_t stride = qkv_cols();
  const int64_t group = heads_ / kv_heads_;
  const Real scale = static_cast<Real>(1 / std::sqrt(static_cast<double>(d)));
  Real* scores = scores_.data();
  for (int64_t b = 0; b < batch_; ++b) {
    for (int64_t h = 0; h < heads_; ++h) {
      const int64_t own = b * t * stride + h * d;
      const int64_t shared = b * t * stride + cols_ + h / group * d;
      const Real* p = probabilities + (b * heads_ + h) * t * t;
      const Real* out = attended_gradient + b * t * cols_ + h * d;
      // Heads that share keys and values add their gradients in ascending order.
      const Real beta = h % group == 0 ? 0 : 1;
      Multiply<Real>(Transpose::kYes, Transpose::kNo, t, d, t, 1, p, t, out, cols_, beta,
                     qkv_gradient + shared + kv_cols_, stride);
      Multiply<Real>(Transpose::kNo, Transpose::kYes, t, t, d, 1, out, cols_,
                     qkv + shared + kv_cols_, stride, 0, scores, t);
      CausalSoftmaxBackward(t, scale, p, scores);
      Multiply<Real>(Transpose::kNo, Transpose::kNo, t, d, t, 1, scores, t, qkv + shared, stride, 0,
                     qkv_gradient + own, stride);
      Multiply<Real>(Transpose::kYes, Transpose::kNo, t, d, t, 1, scores, t, qkv + own, stride,
                     beta, qkv_gradient + shared, stride);
    }
  }
}

template <class Real>
void Attention<Real>::BackwardInput(const Real* weights, const AttentionTensors& at,
                                    const Real* qkv, const Real* probabilities,
                                    const Real* attended_gradient, Real* qkv_gradient,
                                    Real* x_gradient) {
  CoreBackward(qkv, probabilities, attended_gradient, qkv_gradient);
  Rotate(-1, qkv_gradient);
  ForMatrices(at, [&](int64_t w, int64_t /*bias*/, int64_t first, int64_t cols) {
    const Real beta = first == 0 ? 0 : 1;
    LinearBackwardInput(*products_, batch_ * sequence_, cols_, cols, qkv_gradient + first,
                        qkv_cols(), weights + w, beta, x_gradient);
  });
}

template <class Real>
void Attention<Real>::BackwardWeight(const AttentionTensors& at, const Real* qkv_gradient,
                                     const Real* x, Real* gradients, Gradient gradient) const {
  const int64_t rows = batch_ * sequence_;
  ForMatrices(at, [&](int64_t w, int64_t bias, int64_t first, int64_t cols) {
    for (int64_t i = 0; bias >= 0 && i < rows; ++i) {
      AddColumnSums(1, cols, qkv_gradient + i * qkv_cols() + first, gradients + bias);
    }
    LinearBackwardWeight(*products_, rows, cols_, cols, qkv_gradient + first, qkv_cols(), x,
                         gradients + w, at.key < 0 ? gradient : Gradient::kNew);
  });
}

template class Attention<float>;
template class Attention<double>;

}  // namespace pipelag
