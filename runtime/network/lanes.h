// Short vectors of numbers for the kernels: the lanes in which sums are split are written down here
// instead of being left to the compiler, so that a sum is fast and yet the same everywhere. Knows
// arithmetic only. For use in .cpp files.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace pipelag {

/// 32 bytes of float or double. The compiler maps them to whatever vectors the processor has; that
/// changes no value, because the lanes and the order in which they meet are fixed.
template <class Real>
struct Lanes;

template <>
struct Lanes<float> {
  static constexpr int64_t kCount = 8;
  typedef float Vector __attribute__((vector_size(32)));
  typedef int32_t Integers __attribute__((vector_size(32)));
};

template <>
struct Lanes<double> {
  static constexpr int64_t kCount = 4;
  typedef double Vector __attribute__((vector_size(32)));
  typedef int64_t Integers __attribute__((vector_size(32)));
};

template <class Real>
using Vector = typename Lanes<Real>::Vector;

template <class Real>
inline Vector<Real> Load(const Real* from) {
  Vector<Real> v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

template <class Real>
inline void Store(Vector<Real> v, Real* to) {
  std::memcpy(to, &v, sizeof v);
}

template <class Real>
inline Vector<Real> Fill(Real value) {
  return value - Vector<Real>{};
}

/// The first `count` lanes from memory, `rest` in the others; count may exceed the lanes.
template <class Real>
inline Vector<Real> LoadSome(const Real* from, int64_t count, Real rest) {
  if (count >= Lanes<Real>::kCount) return Load(from);
  Vector<Real> v = Fill(rest);
  for (int64_t i = 0; i < count; ++i) v[i] = from[i];
  return v;
}

template <class Real>
inline void StoreSome(Vector<Real> v, int64_t count, Real* to) {
  if (count >= Lanes<Real>::kCount) return Store(v, to);
  for (int64_t i = 0; i < count; ++i) to[i] = v[i];
}

/// Sum of the lanes, halves first.
template <class Real>
inline Real Sum(Vector<Real> v) {
  if constexpr (Lanes<Real>::kCount == 8) {
    return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
  } else {
    return (v[0] + v[2]) + (v[1] + v[3]);
  }
}

template <class Real>
inline Real Largest(Vector<Real> v) {
  Real largest = v[0];
  for (int64_t i = 1; i < Lanes<Real>::kCount; ++i) largest = v[i] > largest ? v[i] : largest;
  return largest;
}

/// Calls body(j, lanes) for j = 0, kCount, … with the lanes left of `cols`; the last may be
/// partial.
template <class Real, class Body>
inline void ForLanes(int64_t cols, Body body) {
  constexpr int64_t kLanes = Lanes<Real>::kCount;
  int64_t j = 0;
  for (; j + kLanes <= cols; j += kLanes) body(j, kLanes);
  if (j < cols) body(j, cols - j);
}

/// e^x. Doubles use the library's. Floats: Cephes' expf (S. Moshier), relative error about 1e-7; x
/// is first limited to [-87.3, 88], so that the result is always a normal number.
inline Vector<double> Exp(Vector<double> x) {
  for (int64_t i = 0; i < Lanes<double>::kCount; ++i) x[i] = std::exp(x[i]);
  return x;
}

inline Vector<float> Exp(Vector<float> x) {
  using Integers = Lanes<float>::Integers;
  // Adding 1.5 · 2^23 leaves the nearest whole number in the low bits.
  constexpr float kRound = 12582912.0f;
  x = x < -87.3f ? Fill(-87.3f) : x;
  x = x > 88.0f ? Fill(88.0f) : x;
  const Vector<float> shifted = x * 1.44269504088896341f + kRound;
  const Vector<float> whole = shifted - kRound;
  const Integers power =
      reinterpret_cast<Integers>(shifted) - reinterpret_cast<Integers>(Fill(kRound));
  const Vector<float> r = (x - whole * 0.693359375f) - whole * -2.12194440e-4f;
  Vector<float> p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = (p * (r * r) + r) + 1.0f;
  return p * reinterpret_cast<Vector<float>>((power + 127) << 23);
}

}  // namespace pipelag
