#include "sim/derived.h"

#include <algorithm>

#include "models/error.h"
#include "sim/simulator.h"

namespace pipelag {
namespace {

__extension__ using Wide = __int128;

constexpr Nanoseconds kUnit{1000};

Costs UnitCosts(int stages) {
  const auto all = [&](int units) {
    return std::vector<Nanoseconds>(static_cast<size_t>(stages), units * kUnit);
  };
  Costs costs;
  costs.forward = costs.backward_input = costs.backward_weight = all(1);
  costs.backward = all(2);
  costs.update = all(0);
  return costs;
}

class Derivation {
 public:
  explicit Derivation(const Program& program) : program_(program) {}

  std::vector<Ratio> Of(Quantity quantity) {
    const Schedule& schedule = program_.schedule();
    switch (quantity) {
      case Quantity::kIdleOfMakespan:
        return {IdleOfMakespan()};
      case Quantity::kIdleOfSpan:
        return {IdleOfSpan()};
      case Quantity::kSteadyIdle:
        return {SteadyIdle()};
      case Quantity::kInFlight:
        return Each(schedule.ranks, [&](int rank) { return program_.PeakInFlightOfRank(rank); });
      case Quantity::kWeightVersions:
        return OfStages(&StageVersions::weight_versions);
      case Quantity::kGradientDelay:
        return OfStages(&StageVersions::gradient_delay);
      case Quantity::kGradientDelayMin:
        return OfStages(&StageVersions::gradient_delay_min);
    }
    CHECK(false);
  }

 private:
  std::vector<Ratio> OfStages(int StageVersions::*value) const {
    return Each(program_.schedule().placed_stages(),
                [&](int stage) { return program_.versions(stage).*value; });
  }

  const Metrics& OfOneStep() {
    if (one_step_.ranks.empty()) {
      const Program program = program_.WithSteps(1);
      one_step_ = Simulate(program, Times(program)).metrics;
    }
    return one_step_;
  }
  ActionTimes Times(const Program& program) const {
    return ActionTimes(program, UnitCosts(program.schedule().stages));
  }

  Ratio IdleOfMakespan() {
    const Metrics& metrics = OfOneStep();
    int64_t idle = 0;
    for (const RankMetrics& rank : metrics.ranks) idle += rank.idle.count();
    const auto ranks = static_cast<int64_t>(metrics.ranks.size());
    return {idle, ranks * metrics.makespan.count()};
  }

  Ratio IdleOfSpan() {
    Ratio worst;
    for (const RankMetrics& rank : OfOneStep().ranks) {
      const Nanoseconds span = rank.totals.last_end - rank.totals.first_start;
      const Ratio idle{(span - rank.totals.busy).count(), span.count()};
      const bool worse = static_cast<Wide>(idle.numerator) * worst.denominator >
                         static_cast<Wide>(worst.numerator) * idle.denominator;
      if (worse) worst = idle;
    }
    return worst;
  }

  Ratio SteadyIdle() const {
    const ActionTimes times = Times(program_);
    const StepTime step = ExactStepTime(program_, times);
    const int64_t busy = times.BusyPerStep(program_).count() * step.denominator;
    return {step.numerator - busy, step.numerator};
  }

  const Program& program_;
  Metrics one_step_;
};

bool Agree(const std::vector<Ratio>& values, const std::vector<Ratio>& derived) {
  if (values.size() == derived.size()) return values == derived;
  return values.size() == 1 && std::all_of(derived.begin(), derived.end(), [&](const Ratio& ratio) {
           return ratio == values.front();
         });
}

}  // namespace

std::vector<DerivedFact> DeriveFacts(const std::vector<Fact>& facts, const Program& program) {
  Derivation derivation(program);
  std::vector<DerivedFact> derived;
  for (const Fact& fact : facts) {
    derived.push_back({fact, derivation.Of(fact.quantity), false});
    derived.back().agrees = Agree(fact.values, derived.back().derived);
  }
  return derived;
}

}  // namespace pipelag
