// One simulated configuration in a line: a schedule, its sizes, uniform times per stage and a link.
#pragma once

#include <string>

#include "models/schedule/generators.h"
#include "sim/simulator.h"

namespace pipelag {

struct Case {
  std::string schedule;
  int p = 4;
  int m = 8;
  int64_t latency = 0;
  int64_t forward = 1000;
  int64_t backward = 2000;
  int64_t update = 0;
  int64_t occupancy = 0;
  int64_t reduction = 0;
  int64_t input = 1000;
  int64_t weight = 1000;
  int64_t overlap = 0;  ///< 0: as long as F and B
  GeneratorOptions options{};
};

inline Costs CostsOf(const Case& c, int stages) {
  Costs costs;
  const auto n = static_cast<size_t>(stages);
  costs.forward.assign(n, Nanoseconds{c.forward});
  costs.backward.assign(n, Nanoseconds{c.backward});
  costs.backward_input.assign(n, Nanoseconds{c.input});
  costs.backward_weight.assign(n, Nanoseconds{c.weight});
  costs.update.assign(n, Nanoseconds{c.update});
  if (c.overlap > 0) costs.overlap.assign(n, Nanoseconds{c.overlap});
  costs.p2p_latency = Nanoseconds{c.latency};
  if (c.occupancy > 0) {
    costs.activation_bytes = c.occupancy;
    costs.p2p_bandwidth = Bandwidth{1'000'000'000};
  }
  return costs;
}

inline Program ProgramOf(const Case& c, int64_t steps) {
  GeneratorOptions options = c.options;
  options.ranks = c.p;
  options.microbatches = c.m;
  return Program(Generate(c.schedule, options), steps);
}

inline ActionTimes TimesOf(const Case& c, const Program& program) {
  return ActionTimes(program, CostsOf(c, program.schedule().stages), {Nanoseconds{c.reduction}});
}

inline Simulation SimulateCase(const Case& c, int64_t steps) {
  const Program program = ProgramOf(c, steps);
  return Simulate(program, TimesOf(c, program));
}

inline StepTime Step(const Case& c) { return SimulateCase(c, 1).steady.step_time; }

inline StepTime Fraction(int64_t numerator, int64_t denominator = 1) {
  return {numerator, denominator};
}

}  // namespace pipelag
