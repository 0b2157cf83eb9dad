// What is known of a schedule in closed form, for sizes at hand: formulas of the literature, each
// kept in its generator's file, to be held against what is derived from the order. Knows no clocks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pipelag {

/// In lowest terms; denominator > 0.
struct Ratio {
  Ratio(int64_t numerator_in = 0, int64_t denominator_in = 1);
  int64_t numerator = 0;
  int64_t denominator = 1;
  bool operator==(const Ratio&) const = default;
};

/// Idle times hold where F, I and W take one unit on every stage, B and an overlapped F and B the
/// sum of theirs, messages and updates nothing.
enum class Quantity : uint8_t {
  kIdleOfMakespan,    ///< of one step with a flush: Σ idle over ranks / (ranks · makespan)
  kIdleOfSpan,        ///< the same step: the worst rank's idle time within its own span / that span
  kSteadyIdle,        ///< of the busiest rank, in steady state
  kInFlight,          ///< per rank: most stage activations held at once
  kWeightVersions,    ///< per placed stage: most live at once
  kGradientDelay,     ///< per placed stage: greatest in steady state
  kGradientDelayMin,  ///< per placed stage: least in steady state
};
std::string_view QuantityName(Quantity quantity);

struct Fact {
  Quantity quantity = Quantity::kIdleOfMakespan;
  /// p ranks, m micro-batches, v chunks, s stage, r rank, w_s warm-up forwards, N group.
  std::string formula;
  std::vector<Ratio> values;  ///< one for all ranks or stages, or one each
};

/// Of every schedule with a flush: one weight version, no delay.
void AddFlushFacts(std::vector<Fact>& facts);

/// `of(i)` for i in [0, count).
template <class Of>
std::vector<Ratio> Each(int count, const Of& of) {
  std::vector<Ratio> values;
  for (int i = 0; i < count; ++i) values.emplace_back(of(i));
  return values;
}

constexpr int64_t CeilingOf(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// What a reader asks first, and none of the facts answers: idle time (by any name), activations,
/// versions, delay.
std::vector<Quantity> WithoutFact(const std::vector<Fact>& facts, bool flushes);

}  // namespace pipelag
