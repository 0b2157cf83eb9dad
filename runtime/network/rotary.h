// The angles of rotary positions. Knows neither heads nor buffers of a network.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace pipelag {

/// Cosines and sines, each (sequence, head_size / 2), of the angles t · 10000^(−2i/D) by which the
/// pairs (i, i + D/2) of a query or key at position t are turned (Su et al., arXiv 2104.09864, with
/// the pairs of Hugging Face's Llama).
template <class Real>
struct RotaryTables {
  std::vector<Real> cosines;
  std::vector<Real> sines;
};

template <class Real>
RotaryTables<Real> MakeRotaryTables(int64_t sequence, int64_t head_size) {
  constexpr double kBase = 10000;
  RotaryTables<Real> tables;
  for (int64_t t = 0; t < sequence; ++t) {
    for (int64_t i = 0; i < head_size / 2; ++i) {
      const double power = -2.0 * static_cast<double>(i) / static_cast<double>(head_size);
      const double angle = static_cast<double>(t) * std::pow(kBase, power);
      tables.cosines.push_back(static_cast<Real>(std::cos(angle)));
      tables.sines.push_back(static_cast<Real>(std::sin(angle)));
    }
  }
  return tables;
}

}  // namespace pipelag
