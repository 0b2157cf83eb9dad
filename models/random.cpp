#include "models/random.h"

#include <cmath>

namespace pipelag {
namespace {

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;

uint64_t Mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

template <int n>
double Polynomial(const double (&c)[n], double x) {
  double y = c[n - 1];
  for (int i = n - 2; i >= 0; --i) y = y * x + c[i];
  return y;
}

}  // namespace

uint64_t RandomBits(uint64_t seed, uint64_t a, uint64_t b, uint64_t c) {
  uint64_t z = Mix(seed + kGolden);
  z = Mix(z ^ (a + kGolden));
  z = Mix(z ^ (b + 2 * kGolden));
  return Mix(z ^ (c + 3 * kGolden));
}

uint64_t UniformBelow(uint64_t bits, uint64_t bound) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>((static_cast<Wide>(bits) * bound) >> 64);
}

double UniformOpen(uint64_t bits) { return (static_cast<double>(bits >> 12) + 0.5) * 0x1p-52; }

double StandardNormal(uint64_t bits) {
  const double q = UniformOpen(bits) - 0.5;
  if (std::fabs(q) <= 0.425) {
    static constexpr double a[] = {
        3.3871328727963666080, 133.14166789178437745, 1971.5909503065514427, 13731.693765509461125,
        45921.953931549871457, 67265.770927008700853, 33430.575583588128105, 2509.0809287301226727};
    static constexpr double b[] = {1.0,
                                   42.313330701600911252,
                                   687.18700749205790830,
                                   5394.1960214247511077,
                                   21213.794301586595867,
                                   39307.895800092710610,
                                   28729.085735721942674,
                                   5226.4952788528545610};
    const double r = 0.180625 - q * q;
    return q * Polynomial(a, r) / Polynomial(b, r);
  }
  const double tail = q < 0 ? q + 0.5 : 0.5 - q;
  const double r = std::sqrt(-std::log(tail));
  double value = 0;
  if (r <= 5.0) {
    static constexpr double c[] = {1.42343711074968357734,    4.63033784615654529590,
                                   5.76949722146069140550,    3.64784832476320460504,
                                   1.27045825245236838258,    2.41780725177450611770e-1,
                                   2.27238449892691845833e-2, 7.74545014278341407640e-4};
    static constexpr double d[] = {1.0,
                                   2.05319162663775882187,
                                   1.67638483018380384940,
                                   6.89767334985100004550e-1,
                                   1.48103976427480074590e-1,
                                   1.51986665636164571966e-2,
                                   5.47593808499534494600e-4,
                                   1.05075007164441684324e-9};
    value = Polynomial(c, r - 1.6) / Polynomial(d, r - 1.6);
  } else {
    static constexpr double e[] = {6.65790464350110377720,    5.46378491116411436990,
                                   1.78482653991729133580,    2.96560571828504891230e-1,
                                   2.65321895265761230930e-2, 1.24266094738807843860e-3,
                                   2.71155556874348757815e-5, 2.01033439929228813265e-7};
    static constexpr double f[] = {1.0,
                                   5.99832206555887937690e-1,
                                   1.36929880922735805310e-1,
                                   1.48753612908506148525e-2,
                                   7.86869131145613259100e-4,
                                   1.84631831751005468180e-5,
                                   1.42151175831644588870e-7,
                                   2.04426310338993978564e-15};
    value = Polynomial(e, r - 5.0) / Polynomial(f, r - 5.0);
  }
  return q < 0 ? -value : value;
}

double Exponential(double x) {
  constexpr double kLog2 = 0x1.62e42fefa39efp-1;
  const double k = std::floor(x / kLog2 + 0.5);
  const double r = x - k * kLog2;
  double sum = 1;
  for (int n = 17; n >= 1; --n) sum = 1 + sum * r / n;
  return std::ldexp(sum, static_cast<int>(k));
}

}  // namespace pipelag
