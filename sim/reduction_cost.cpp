#include "sim/reduction_cost.h"

#include <algorithm>
#include <vector>

namespace pipelag {
namespace {

__extension__ using Wide = __int128;

bool IsLonger(const StepTime& a, const StepTime& b) {
  return Wide{a.numerator} * b.denominator > Wide{b.numerator} * a.denominator;
}

/// Step times of the program with every reduction of gradients taking the same time.
class AlikeReductions {
 public:
  AlikeReductions(const Program& program, const ActionTimes& times, int receive_slots)
      : program_(program), times_(times), receive_slots_(receive_slots) {}

  SteadyState At(int64_t time) {
    std::vector<int64_t> groups;
    for (size_t g = 0; g < program_.schedule().groups.size(); ++g) {
      const bool gradients = MovesGradients(program_.schedule().groups[g]);
      groups.push_back(gradients ? time : times_.OfReduction(static_cast<int>(g)));
    }
    times_.ReplaceReductions(std::move(groups), program_);
    return ExactSteadyState(program_, times_, {.receive_slots = receive_slots_});
  }

  /// The longest time at which the step takes `limit`, if it does at 0.
  std::optional<Nanoseconds> Longest(const StepTime& limit) {
    if (IsLonger(At(0).step_time, limit)) return std::nullopt;
    // A reduce lane does one such reduction a step, at least.
    int64_t time = limit.RoundedUp().count() + 1;
    for (;;) {
      const SteadyState steady = At(time);
      if (!IsLonger(steady.step_time, limit)) return Nanoseconds{time};
      const int64_t steps = steady.critical_steps;
      const int64_t reductions = steady.critical_reductions;
      CHECK(steps > 0 && reductions > 0);
      const Wide rest = Wide{steady.step_time.numerator} * (steps / steady.step_time.denominator) -
                        Wide{time} * reductions;
      const Wide all = Wide{limit.numerator} * steps / limit.denominator;
      time = static_cast<int64_t>((all - rest) / reductions);
      CHECK(time >= 0);
    }
  }

 private:
  const Program& program_;
  ActionTimes times_;
  int receive_slots_;
};

}  // namespace

Nanoseconds ReductionCost::Cost() const {
  const Wide difference =
      Wide{with.numerator} * without.denominator - Wide{without.numerator} * with.denominator;
  const Wide parts = Wide{with.denominator} * without.denominator;
  return Nanoseconds{static_cast<int64_t>((difference + parts - 1) / parts)};
}

ReductionCost CostOfReductions(const Program& program, const ActionTimes& times,
                               int receive_slots) {
  ReductionCost cost;
  cost.with = ExactSteadyState(program, times, {.receive_slots = receive_slots}).step_time;
  cost.without =
      ExactSteadyState(program, times, {.receive_slots = receive_slots, .without_reductions = true})
          .step_time;
  const auto& groups = program.schedule().groups;
  if (std::none_of(groups.begin(), groups.end(), MovesGradients)) return cost;
  cost.longest_hidden = AlikeReductions(program, times, receive_slots).Longest(cost.without);
  if (!cost.longest_hidden) return cost;
  for (size_t g = 0; g < groups.size(); ++g) {
    if (!MovesGradients(groups[g])) continue;
    const Nanoseconds time{times.OfReduction(static_cast<int>(g))};
    cost.too_long = std::max(cost.too_long, time - *cost.longest_hidden);
  }
  return cost;
}

}  // namespace pipelag
