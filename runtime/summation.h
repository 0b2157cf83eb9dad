// The one order in which what several ranks have is added up, so that every transport comes to the
// same bits. Knows no ranks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "models/error.h"

namespace pipelag {

/// Replaces every summand by ((first + second) + third) …, element by element. All of one length;
/// at least one.
template <class Value>
void AddUp(const std::vector<std::span<Value>>& summands) {
  const std::span<Value> sum = summands.front();
  for (size_t k = 1; k < summands.size(); ++k) {
    CHECK(summands[k].size() == sum.size());
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += summands[k][i];
  }
  for (size_t k = 1; k < summands.size(); ++k) {
    std::copy(sum.begin(), sum.end(), summands[k].begin());
  }
}

}  // namespace pipelag
