// The one order in which what several ranks have is added up, so that every transport comes to the
// same bits. Knows no ranks.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "models/error.h"

namespace pipelag {

/// What one of several members adds up of a sum that they share out.
struct PartOfSum {
  size_t begin = 0;
  size_t length = 0;
};
constexpr PartOfSum PartOf(size_t length, size_t member, size_t members) {
  const size_t begin = length * member / members;
  return {begin, length * (member + 1) / members - begin};
}

/// Adds into the first summand, element by element: every `together` consecutive ones to a sum,
/// ((first + second) + third) …, and then these sums likewise. All of one length; at least one;
/// their number a multiple of `together`. Which elements are added in one call is of no matter.
template <class Value>
void AddInto(const std::vector<std::span<Value>>& summands, size_t together) {
  constexpr size_t kBlock = 2048;
  CHECK(!summands.empty() && summands.size() % together == 0);
  const std::span<Value> sum = summands.front();
  for (const std::span<Value>& summand : summands) CHECK(summand.size() == sum.size());
  std::array<Value, kBlock> part;
  for (size_t begin = 0; begin < sum.size(); begin += kBlock) {
    const size_t length = std::min(kBlock, sum.size() - begin);
    const auto add = [&](size_t k, Value* to) {
      const Value* from = summands[k].data() + begin;
      for (size_t i = 0; i < length; ++i) to[i] += from[i];
    };
    Value* const total = sum.data() + begin;
    for (size_t k = 1; k < together; ++k) add(k, total);
    for (size_t first = together; first < summands.size(); first += together) {
      if (together == 1) {
        add(first, total);
        continue;
      }
      std::copy_n(summands[first].data() + begin, length, part.begin());
      for (size_t k = 1; k < together; ++k) add(first + k, part.data());
      for (size_t i = 0; i < length; ++i) total[i] += part[i];
    }
  }
}

/// The same, with every summand replaced by the sum.
template <class Value>
void AddUp(const std::vector<std::span<Value>>& summands, size_t together = 1) {
  AddInto(summands, together);
  const std::span<Value> sum = summands.front();
  for (size_t k = 1; k < summands.size(); ++k) {
    std::copy(sum.begin(), sum.end(), summands[k].begin());
  }
}

}  // namespace pipelag
