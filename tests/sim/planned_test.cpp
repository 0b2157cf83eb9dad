// Generators and proposals that are handed costs: what they promise, checked by simulation.
#include <gtest/gtest.h>

#include <algorithm>

#include "models/random.h"
#include "models/schedule/warm_up.h"
#include "tests/sim/case.h"

namespace pipelag {
namespace {

GivenCosts Uniform(int stages, int64_t f, int64_t i, int64_t w, int64_t latency) {
  const auto n = static_cast<size_t>(stages);
  return {std::vector(n, f), std::vector(n, i), std::vector(n, w), latency};
}

// The smallest integers: w_s = (p − 1 − s)(1 + ⌈2c / (F + B)⌉).
TEST(WarmUpProposal, OfUniformStages) {
  for (int p = 1; p <= 8; ++p) {
    for (const int64_t c : {0, 1, 100, 1500, 1501, 4000}) {
      const WarmUpProposal proposal = ProposeWarmUp(Uniform(p, 1000, 1000, 1000, c));
      const auto slope = static_cast<int>(1 + (2 * c + 2999) / 3000);
      EXPECT_EQ(proposal.slope, p == 1 ? 1 : slope) << p << ' ' << c;
      for (int s = 0; s < p; ++s) {
        EXPECT_EQ(proposal.warmup[static_cast<size_t>(s)], (p - 1 - s) * slope);
      }
    }
  }
}

// Enough hides everything, and one less on any one stage does not.
TEST(WarmUpProposal, IsSufficientAndTheSmallest) {
  for (uint64_t n = 0; n < 60; ++n) {
    const int p = 2 + static_cast<int>(RandomBits(5, n, 1) % 5);
    GivenCosts given = Uniform(p, 0, 0, 0, static_cast<int64_t>(RandomBits(5, n, 2) % 3000));
    Costs costs = CostsOf({}, p);
    costs.p2p_latency = Nanoseconds{given.latency};
    int64_t pace = 0;
    for (size_t s = 0; s < static_cast<size_t>(p); ++s) {
      given.forward[s] = 500 + static_cast<int64_t>(RandomBits(5, n, 3 + s) % 500);
      given.backward_input[s] = 2 * given.forward[s];
      costs.forward[s] = Nanoseconds{given.forward[s]};
      costs.backward[s] = Nanoseconds{given.backward_input[s]};
      pace = std::max(pace, 3 * given.forward[s]);
    }
    const WarmUpProposal proposal = ProposeWarmUp(given);
    const auto step = [&](const GeneratorOptions& options) {
      const Program program(Generate("2bw", options), 1);
      return ExactSteadyState(program, ActionTimes(program, costs)).step_time;
    };
    const int m = std::max(proposal.slope * (p - 1), proposal.warmup[0]) + 1;
    const StepTime best = Fraction(m * pace);
    EXPECT_EQ(step({.ranks = p, .microbatches = m, .warmup = proposal.warmup}), best);
    EXPECT_EQ(step({.ranks = p, .microbatches = m, .warmup_slope = proposal.slope}), best);
    if (proposal.slope > 1) {
      EXPECT_NE(step({.ranks = p, .microbatches = m, .warmup_slope = proposal.slope - 1}), best);
    }
    std::vector<int> less = proposal.warmup;
    --less[0];
    EXPECT_NE(step({.ranks = p, .microbatches = m, .warmup = less}), best) << n;
  }
}

struct Planned {
  int64_t makespan;
  int64_t peak;
  int64_t span_idle;
};

Planned Auto(int p, int m, int chunks, double limit, const GivenCosts& given) {
  const GeneratorOptions options{
      .ranks = p, .microbatches = m, .chunks = chunks, .costs = given, .memory_limit = limit};
  const Program program(Generate("zb-auto", options), 1);
  EXPECT_EQ(program.schedule().body, Generate("zb-auto", options).body);  // deterministic
  Costs costs = CostsOf({}, p * chunks);
  for (size_t s = 0; s < given.forward.size(); ++s) {
    costs.forward[s] = Nanoseconds{given.forward[s]};
    costs.backward_input[s] = Nanoseconds{given.backward_input[s]};
    costs.backward_weight[s] = Nanoseconds{given.backward_weight[s]};
  }
  costs.p2p_latency = Nanoseconds{given.latency};
  const Simulation s = Simulate(program, ActionTimes(program, costs));
  Planned planned{s.metrics.makespan.count(), 0, 0};
  for (const RankMetrics& rank : s.metrics.ranks) {
    planned.peak = std::max(planned.peak, rank.totals.peak_in_flight);
    planned.span_idle =
        std::max(planned.span_idle,
                 (rank.totals.last_end - rank.totals.first_start - rank.totals.busy).count());
  }
  return planned;
}

// With the memory of the hand-made schedules it is as short as they are.
TEST(ZbAuto, ReachesTheHandMadeSchedules) {
  for (const int p : {1, 2, 4, 8}) {
    const int m = 3 * p;
    const auto makespan = [&](const char* schedule) {
      return SimulateCase({.schedule = schedule, .p = p, .m = m}, 1).metrics.makespan.count();
    };
    const GivenCosts one = Uniform(p, 1000, 1000, 1000, 0);
    EXPECT_EQ(Auto(p, m, 1, p, one).makespan, makespan("zb-h1")) << p;
    EXPECT_EQ(Auto(p, m, 1, 2 * p - 1, one).makespan, makespan("zb-h2")) << p;
    EXPECT_EQ(Auto(p, m, 1, 2 * p, one).span_idle, 0) << p;
    const GivenCosts two = Uniform(2 * p, 1000, 1000, 1000, 0);
    EXPECT_EQ(Auto(p, m, 2, p, two).makespan, makespan("zb-v")) << p;
  }
}

// Half of 1F1B's memory for no more than its time, which is 2 · 3000 per micro-batch here.
TEST(ZbAuto, HalfOfTheMemoryIsNoSlowerThan1F1B) {
  for (const int p : {4, 8, 16}) {
    const int m = 3 * p;
    const Planned half = Auto(p, m, 2, p / 2.0, Uniform(2 * p, 1000, 1000, 1000, 0));
    EXPECT_LE(half.peak, p) << p;
    if (p > 4) {
      EXPECT_LE(half.makespan, 6000 * (m + p - 1)) << p;
    }
  }
}

// The idle slots per rank of the line that arXiv 2405.15362 gives for V-Min and V-Half, 2/3 and 1/2
// of the 6 of 1F1B, at p/3 and p/2 of the memory and what the turns of the V need, which can also
// take one slot more.
TEST(ZbAuto, ReachesVMinAndVHalf) {
  for (const int p : {4, 6, 8, 12, 16, 24}) {
    const int m = 3 * p;
    const GivenCosts given = Uniform(2 * p, 1000, 1000, 1000, 0);
    EXPECT_LE(Auto(p, m, 2, p / 3.0 + 1.5, given).makespan, 1000 * (6 * m + 4 * (p - 1) + 1)) << p;
    EXPECT_LE(Auto(p, m, 2, p / 2.0 + 1.5, given).makespan, 1000 * (6 * m + 3 * (p - 1) + 1)) << p;
  }
}

// Down to a single micro-batch at a time, where every pass waits for the one before.
TEST(ZbAuto, IsNoSlowerWithMoreMemory) {
  const int p = 8;
  const int m = 16;
  const GivenCosts given = Uniform(2 * p, 1000, 1000, 1000, 0);
  int64_t last = 1000 * m * (4 * p + 2);
  for (double limit = 1; limit <= p; limit += 0.5) {
    const int64_t makespan = Auto(p, m, 2, limit, given).makespan;
    EXPECT_LE(makespan, last) << limit;
    last = makespan;
  }
}

TEST(ZbAuto, KeepsTheMemoryLimitForAnyTimes) {
  for (uint64_t n = 0; n < 120; ++n) {
    const auto draw = [&](uint64_t key, uint64_t bound) {
      return static_cast<int64_t>(UniformBelow(RandomBits(6, n, key), bound));
    };
    const int p = 1 + static_cast<int>(draw(0, 6));
    const int v = 1 + static_cast<int>(draw(1, 2));
    const int m = 1 + static_cast<int>(draw(2, 16));
    GivenCosts given = Uniform(p * v, 0, 0, 0, draw(3, 800));
    for (size_t s = 0; s < given.forward.size(); ++s) {
      given.forward[s] = draw(10 + 3 * s, 1000);
      given.backward_input[s] = draw(11 + 3 * s, 1500);
      given.backward_weight[s] = draw(12 + 3 * s, 1500);
    }
    for (const double limit : {1.0, p / 3.0, p / 2.0, 1.0 * p, 2.0 * p}) {
      if (limit < 1) continue;
      const Planned planned = Auto(p, m, v, limit, given);
      EXPECT_LE(static_cast<double>(planned.peak), limit * v) << n;
    }
  }
}

}  // namespace
}  // namespace pipelag
