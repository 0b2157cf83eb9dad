// Shares of a link's bandwidth as exact fractions. Knows nothing of links.
#pragma once

#include <cstdint>
#include <numeric>

namespace pipelag {

__extension__ using Wide = __int128;

/// ⌈a ÷ b⌉ of a ≥ 0 and b > 0.
inline Wide CeilDiv(Wide a, Wide b) {
  if (a <= INT64_MAX && b <= INT64_MAX) {
    const auto x = static_cast<int64_t>(a);
    const auto y = static_cast<int64_t>(b);
    return x / y + (x % y != 0 ? 1 : 0);
  }
  return a / b + (a % b != 0 ? 1 : 0);
}

/// Bytes per second, ≥ 0, in lowest terms. Shares nested so deeply that the denominator would pass
/// 2^20 are rounded down to a multiple of 2^-20 bytes/s; all others are exact.
class Rate {
 public:
  static constexpr int64_t kFinest = int64_t{1} << 20;

  Rate() = default;
  explicit Rate(int64_t bytes_per_second) : numerator_(bytes_per_second) {}

  Wide numerator() const { return numerator_; }
  int64_t denominator() const { return denominator_; }

  Rate Minus(const Rate& other) const {
    return Reduced(numerator_ * other.denominator_ - other.numerator_ * denominator_,
                   Wide{denominator_} * other.denominator_);
  }
  Rate DividedBy(int64_t parts) const { return Reduced(numerator_, Wide{denominator_} * parts); }

  bool operator==(const Rate&) const = default;
  bool operator<(const Rate& other) const {
    return numerator_ * other.denominator_ < other.numerator_ * denominator_;
  }

 private:
  static Rate Reduced(Wide numerator, Wide denominator) {
    Rate rate;
    if (numerator <= 0) return rate;  // what rounding left below nothing
    Wide a = numerator;
    for (Wide b = denominator; b != 0;) {
      const Wide rest = a % b;
      a = b;
      b = rest;
    }
    numerator /= a;
    denominator /= a;
    if (denominator > kFinest) return Reduced(numerator * kFinest / denominator, kFinest);
    rate.numerator_ = numerator;
    rate.denominator_ = static_cast<int64_t>(denominator);
    return rate;
  }

  Wide numerator_ = 0;
  int64_t denominator_ = 1;
};

}  // namespace pipelag
