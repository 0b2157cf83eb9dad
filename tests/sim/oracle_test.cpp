// The simulator against closed forms and stored test values: exact integers, no tolerance.
#include <gtest/gtest.h>

#include <numeric>

#include "tests/sim/case.h"

namespace pipelag {
namespace {

TEST(Oracle, ExampleOf1F1BAndGpipe) {
  for (const char* schedule : {"1f1b", "gpipe"}) {
    const Simulation s =
        SimulateCase({.schedule = schedule, .forward = 1'000'000, .backward = 2'000'000}, 1);
    EXPECT_EQ(s.metrics.makespan.count(), 33'000'000);
    EXPECT_EQ(s.metrics.bubble.idle_of_makespan, 3.0 / 11.0);
    EXPECT_EQ(s.metrics.bubble.idle_over_ideal, 3.0 / 8.0);
    EXPECT_EQ(s.metrics.bubble.of_span, 3.0 / 11.0);
    EXPECT_EQ(s.metrics.bubble.steady_state, 3.0 / 11.0);
    const bool gpipe = std::string(schedule) == "gpipe";
    for (int r = 0; r < 4; ++r) {
      EXPECT_EQ(s.metrics.ranks[static_cast<size_t>(r)].totals.peak_in_flight, gpipe ? 8 : 4 - r);
    }
  }
}

// reference: schedules 4.2.
TEST(Oracle, GpipeMakespanWithLatency) {
  for (int p = 1; p <= 9; ++p) {
    for (int m = 1; m <= 20; ++m) {
      for (const int64_t c : {0, 7, 100, 2500}) {
        for (const auto& [f, b] : {std::pair(1000, 2000), std::pair(700, 1100), std::pair(3, 1)}) {
          const Simulation s = SimulateCase(
              {.schedule = "gpipe", .p = p, .m = m, .latency = c, .forward = f, .backward = b}, 1);
          const int64_t expected = int64_t{m + p - 1} * (f + b) + 2 * (p - 1) * c;
          ASSERT_EQ(s.metrics.makespan.count(), expected) << p << ' ' << m << ' ' << c;
          ASSERT_EQ(s.steady.step_time, Fraction(expected)) << p << ' ' << m << ' ' << c;
        }
      }
    }
  }
}

// 4.3, the latency form; domain: c up to 2.5 F with B = 2 F.
TEST(Oracle, OneFOneBMakespanWithLatency) {
  for (int p = 2; p <= 11; ++p) {
    for (int m = 1; m <= 4 * p + 2; ++m) {
      for (const int64_t c : {0, 1, 100, 500, 1000, 2500}) {
        const Simulation s = SimulateCase({.schedule = "1f1b", .p = p, .m = m, .latency = c}, 1);
        const int64_t rest = m % p;
        const int64_t e = rest <= 1 ? rest : rest - 1;
        const int64_t hops = int64_t{p - 1} * (m / p) + (p - 2) + e;
        ASSERT_EQ(s.metrics.makespan.count(), int64_t{m + p - 1} * 3000 + 2 * c * hops)
            << p << ' ' << m << ' ' << c;
      }
    }
  }
}

TEST(Oracle, OneFOneBMakespanAndIdleWithoutLatency) {
  for (int p = 1; p <= 8; ++p) {
    for (int m = 1; m <= 18; ++m) {
      for (const auto& [f, b] : {std::pair(1000, 2000), std::pair(5, 3), std::pair(1, 1)}) {
        const Simulation s =
            SimulateCase({.schedule = "1f1b", .p = p, .m = m, .forward = f, .backward = b}, 1);
        ASSERT_EQ(s.metrics.makespan.count(), int64_t{m + p - 1} * (f + b));
        for (int r = 0; r < p; ++r) {
          const RankMetrics& rank = s.metrics.ranks[static_cast<size_t>(r)];
          ASSERT_EQ(rank.idle.count(), int64_t{p - 1} * (f + b));
          ASSERT_EQ(rank.totals.peak_in_flight, std::min(m, p - r));
        }
      }
    }
  }
}

// 4.14, the rows of these four schedules.
TEST(Oracle, TableOfExactStepTimes) {
  EXPECT_EQ(Step({.schedule = "gpipe", .latency = 100, .update = 30}), Fraction(33630));
  EXPECT_EQ(Step({.schedule = "1f1b", .latency = 100}), Fraction(34600));
  EXPECT_EQ(Step({.schedule = "1f1b", .m = 2, .latency = 100}), Fraction(15600));
  EXPECT_EQ(Step({.schedule = "1f1b", .p = 1, .m = 3, .latency = 100, .update = 30}),
            Fraction(9030));
  EXPECT_EQ(Step({.schedule = "1f1b", .latency = 100, .options = {.warmup_slope = 2}}),
            Fraction(33600));
  EXPECT_EQ(Step({.schedule = "pipedream", .m = 1, .latency = 100, .update = 50}),
            Fraction(6325, 2));
  EXPECT_EQ(Step({.schedule = "pipedream", .m = 3, .latency = 100}), Fraction(9450));
  EXPECT_EQ(Step({.schedule = "2bw", .m = 5, .latency = 100}), Fraction(15750));
  EXPECT_EQ(Step({.schedule = "2bw", .p = 64, .m = 512, .latency = 100}), Fraction(1636800));
  EXPECT_EQ(
      Step({.schedule = "2bw", .p = 8, .m = 32, .latency = 2000, .options = {.warmup_slope = 2}}),
      Fraction(332800, 3));
  EXPECT_EQ(
      Step({.schedule = "2bw", .p = 8, .m = 32, .latency = 2000, .options = {.warmup_slope = 3}}),
      Fraction(96000));
  EXPECT_EQ(Step({.schedule = "2bw", .m = 4, .latency = 700, .occupancy = 4000}), Fraction(40200));
  const GeneratorOptions early{.reduction = true, .late_update = false};
  const GeneratorOptions late{.reduction = true, .late_update = true};
  EXPECT_EQ(Step({.schedule = "2bw", .update = 50, .reduction = 1500, .options = early}),
            Fraction(25550));
  EXPECT_EQ(Step({.schedule = "2bw", .update = 50, .reduction = 1500, .options = late}),
            Fraction(24050));
  EXPECT_EQ(Step({.schedule = "2bw", .options = {.norm = true, .late_update = false}}),
            Fraction(30000));
  EXPECT_EQ(Step({.schedule = "2bw", .options = {.norm = true, .late_update = true}}),
            Fraction(24000));
}

TEST(Oracle, BubblesOf2BW) {
  const Simulation s = SimulateCase({.schedule = "2bw", .m = 5, .latency = 100}, 10);
  EXPECT_EQ(s.metrics.makespan.count(), 166800);
  EXPECT_EQ(s.metrics.bubble.idle_of_makespan, 14.0 / 139.0);
  EXPECT_EQ(s.metrics.bubble.idle_over_ideal, 14.0 / 125.0);
  EXPECT_EQ(s.metrics.bubble.of_span, 14.0 / 139.0);
  EXPECT_EQ(s.metrics.bubble.steady_state, 1.0 / 21.0);
}

// 4.12: the mean step of uniform 1F1B without flush, the maximum over pairs of stages.
TEST(Oracle, AsynchronousSteadyStateWithLatency) {
  for (int p = 1; p <= 9; ++p) {
    for (const int slope : {1, 2, 3}) {
      for (const int m : {std::max(1, slope * (p - 1)), slope * p + 1, 4 * p}) {
        for (const int64_t c : {0, 100, 333, 1500, 4000}) {
          if (m < slope * (p - 1)) continue;
          // Per micro-batch the maximum over s < q of num / den, as fractions per m micro-batches.
          StepTime best = Fraction(3000 * m);
          for (int s = 0; s < p; ++s) {
            for (int q = s + 1; q < p; ++q) {
              const int64_t num = ((q - s + 1) * 3000 + 2 * (q - s) * c) * m;
              const int64_t den = 1 + slope * (q - s);
              if (num * best.denominator > best.numerator * den) {
                const int64_t g = std::gcd(num, den);
                best = Fraction(num / g, den / g);
              }
            }
          }
          ASSERT_EQ(Step({.schedule = "2bw",
                          .p = p,
                          .m = m,
                          .latency = c,
                          .options = {.warmup_slope = slope}}),
                    best)
              << p << ' ' << m << ' ' << c << ' ' << slope;
        }
      }
    }
  }
}

// The steady state is the mean of a long run: the two are computed by different means.
TEST(Oracle, SteadyStateIsTheMeanOfLongRuns) {
  for (const char* schedule : {"gpipe", "1f1b", "pipedream", "2bw"}) {
    for (const auto& [p, m, c, u] : {std::tuple(4, 5, 100, 0), std::tuple(3, 7, 450, 60),
                                     std::tuple(6, 6, 1234, 11), std::tuple(2, 3, 10, 5)}) {
      const Case c1{.schedule = schedule, .p = p, .m = m, .latency = c, .update = u};
      const StepTime exact = Step(c1);
      const int64_t period = 60 * exact.denominator;
      const int64_t warm = 200;
      const int64_t a = SimulateCase(c1, warm).metrics.makespan.count();
      const int64_t b = SimulateCase(c1, warm + period).metrics.makespan.count();
      ASSERT_EQ((b - a) * exact.denominator, exact.numerator * period) << schedule << p << m;
    }
  }
}

TEST(Oracle, SlotsThatNeverDelay) {
  for (int p = 2; p <= 6; ++p) {
    for (const int64_t c : {0, 100, 2500}) {
      const Case c1{.schedule = "1f1b", .p = p, .m = 3 * p, .latency = c, .occupancy = 50};
      Case c2 = c1;
      c2.options.ranks = p;
      c2.options.microbatches = 3 * p;
      const Program program(Generate("1f1b", c2.options), 3);
      const ActionTimes times(program, CostsOf(c1, p));
      const Simulation free = Simulate(program, times);
      const Simulation enough = Simulate(program, times, {.receive_slots = p});
      EXPECT_EQ(free.metrics.makespan, enough.metrics.makespan);
      EXPECT_EQ(free.steady.step_time, enough.steady.step_time);
      Nanoseconds last = free.metrics.makespan;
      for (int slots = p - 1; slots >= 1; --slots) {
        const Simulation fewer = Simulate(program, times, {.receive_slots = slots});
        EXPECT_GE(fewer.metrics.makespan, last);
        last = fewer.metrics.makespan;
      }
    }
  }
}

TEST(Oracle, BoundedSlotsInSteadyStateAreTheMeanOfLongRuns) {
  for (const char* schedule : {"gpipe", "1f1b", "pipedream", "2bw"}) {
    for (const int slots : {1, 2, 3}) {
      GeneratorOptions options{.ranks = 4, .microbatches = 5};
      const Case c{.schedule = schedule, .m = 5, .latency = 700, .occupancy = 900};
      const Program program(Generate(schedule, options), 1);
      const ActionTimes times(program, CostsOf(c, 4));
      const StepTime exact = ExactSteadyState(program, times, {.receive_slots = slots}).step_time;
      const auto makespan = [&](int64_t steps) {
        return Simulate(program.WithSteps(steps), times, {.receive_slots = slots})
            .metrics.makespan.count();
      };
      const int64_t period = 60 * exact.denominator;
      EXPECT_EQ((makespan(300 + period) - makespan(300)) * exact.denominator,
                exact.numerator * period)
          << schedule << slots;
    }
  }
}

// Runs shorter than the pipeline: a chain, then its return.
TEST(Oracle, OneMicrobatchIsAChain) {
  for (const char* schedule : {"gpipe", "1f1b", "pipedream"}) {
    for (int p = 1; p <= 8; ++p) {
      const Simulation s = SimulateCase({.schedule = schedule, .p = p, .m = 1, .latency = 10}, 1);
      EXPECT_EQ(s.metrics.makespan.count(), p * 3000 + 2 * (p - 1) * 10) << schedule << p;
    }
  }
}

}  // namespace
}  // namespace pipelag
