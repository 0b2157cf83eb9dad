// Closed forms of the literature, each within the domain in which it holds, over wide sweeps.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "models/random.h"
#include "tests/sim/case.h"

namespace pipelag {
namespace {

int64_t MaximumSpanIdle(const Simulation& s) {
  int64_t most = 0;
  for (const RankMetrics& rank : s.metrics.ranks) {
    const RankTotals& t = rank.totals;
    most = std::max(most, (t.last_end - t.first_start - t.busy).count());
  }
  return most;
}

int64_t MaximumIdle(const Simulation& s) {
  int64_t most = 0;
  for (const RankMetrics& rank : s.metrics.ranks) most = std::max(most, rank.idle.count());
  return most;
}

void ExpectPeaks(const Simulation& s, int64_t chunks) {
  for (const RankMetrics& rank : s.metrics.ranks) {
    ASSERT_EQ(rank.totals.peak_in_flight, chunks) << s.trace.schedule;
  }
}

// Times per chunk here: a rank's F is v of them.
TEST(ClosedForm, Interleaved) {
  for (int p = 1; p <= 8; ++p) {
    for (int v = 1; v <= 4; ++v) {
      for (int groups = 1; groups <= 5; ++groups) {
        for (const int n : {p, p + 1, 2 * p}) {
          for (const auto& [f, b] :
               {std::pair(1000, 2000), std::pair(700, 1100), std::pair(3, 1)}) {
            const int m = n * groups;
            const Simulation s = SimulateCase({.schedule = "interleaved-1f1b",
                                               .p = p,
                                               .m = m,
                                               .forward = f,
                                               .backward = b,
                                               .options = {.chunks = v, .group = n}},
                                              1);
            ASSERT_EQ(s.metrics.makespan.count(), int64_t{m * v + p - 1} * (f + b))
                << p << ' ' << v << ' ' << m << ' ' << n;
            for (int r = 0; r < p; ++r) {
              ASSERT_EQ(s.metrics.ranks[static_cast<size_t>(r)].totals.peak_in_flight,
                        std::min(m * v, 2 * (p - 1 - r) + (v - 1) * n + 1));
            }
          }
        }
      }
    }
  }
}

TEST(ClosedForm, InterleavedWithFlexibleRounds) {
  const auto step = [](int p, int m, int v) {
    return SimulateCase({.schedule = "interleaved-1f1b",
                         .p = p,
                         .m = m,
                         .options = {.chunks = v, .group = GeneratorOptions::kFlexibleGroup}},
                        1)
        .metrics.makespan.count();
  };
  EXPECT_EQ(step(4, 10, 2), (10 * 2 + 3) * 3000);  // 2 rounds of 5
  EXPECT_EQ(step(4, 7, 3), (7 * 3 + 3) * 3000);    // 1 round of 7
  EXPECT_THROW(step(4, 9, 2), Error);              // 2 rounds do not share 9
}

TEST(ClosedForm, LoopedBreadthFirst) {
  for (int p = 1; p <= 8; ++p) {
    for (int v = 1; v <= 4; ++v) {
      for (int m = p; m <= 4 * p + 1; ++m) {
        for (const auto& [f, b] : {std::pair(1000, 2000), std::pair(700, 1100), std::pair(3, 1)}) {
          const Simulation s = SimulateCase({.schedule = "looped-bfs",
                                             .p = p,
                                             .m = m,
                                             .forward = f,
                                             .backward = b,
                                             .options = {.chunks = v}},
                                            1);
          ASSERT_EQ(s.metrics.makespan.count(), int64_t{m * v + p - 1} * (f + b));
          ExpectPeaks(s, m * v);
        }
      }
    }
  }
  // Fewer micro-batches than ranks stall: 27 instead of 21.
  EXPECT_EQ(Step({.schedule = "looped-bfs", .m = 2, .options = {.chunks = 2}}), Fraction(27000));
}

// Megatron-LM's and Primus' worked examples: p = 8, m = 32, F = 1000, B = 2000 per rank.
TEST(ClosedForm, WorkedExamplesOfEightRanks) {
  const Simulation interleaved = SimulateCase({.schedule = "interleaved-1f1b",
                                               .p = 8,
                                               .m = 32,
                                               .forward = 500,
                                               .backward = 1000,
                                               .options = {.chunks = 2}},
                                              1);
  EXPECT_EQ(interleaved.metrics.makespan.count(), 106500);
  EXPECT_EQ(interleaved.metrics.ranks[0].totals.peak_in_flight, 23);  // chunks: 11.5 stages
  EXPECT_EQ(Step({.schedule = "zb-h1", .p = 8, .m = 32}), Fraction(103000));
}

/// Times with W ≤ F, and I of any size.
struct Draw {
  int64_t f, i, w;
};
Draw DrawTimes(uint64_t seed, uint64_t n) {
  Draw d{};
  d.f = 1 + static_cast<int64_t>(RandomBits(seed, 3 * n) % 2000);
  d.i = 1 + static_cast<int64_t>(RandomBits(seed, 3 * n + 1) % 2500);
  d.w = static_cast<int64_t>(RandomBits(seed, 3 * n + 2) % static_cast<uint64_t>(d.f + 1));
  return d;
}

TEST(ClosedForm, ZeroBubbleH1) {
  uint64_t n = 0;
  for (int p = 1; p <= 9; ++p) {
    for (int m = p; m <= 4 * p + 2; ++m) {
      for (int draw = 0; draw < 6; ++draw) {
        const Draw d = DrawTimes(1, n++);
        const Simulation s = SimulateCase(
            {.schedule = "zb-h1", .p = p, .m = m, .forward = d.f, .input = d.i, .weight = d.w}, 1);
        ASSERT_EQ(MaximumSpanIdle(s), (p - 1) * (d.f + d.i - d.w)) << p << ' ' << m;
        ASSERT_EQ(MaximumIdle(s), (p - 1) * (d.f + std::max<int64_t>(0, d.i - d.w)));
        ExpectPeaks(s, p);
      }
    }
  }
}

TEST(ClosedForm, ZeroBubbleH2) {
  uint64_t n = 0;
  for (int p = 1; p <= 9; ++p) {
    for (int m = 2 * p - 1; m <= 5 * p; ++m) {
      for (int draw = 0; draw < 6; ++draw) {
        const Draw d = DrawTimes(2, n++);
        const Simulation s = SimulateCase(
            {.schedule = "zb-h2", .p = p, .m = m, .forward = d.f, .input = d.i, .weight = d.w}, 1);
        ASSERT_EQ(MaximumSpanIdle(s), std::max<int64_t>(0, (p - 1) * (d.f + d.i - 2 * d.w)))
            << p << ' ' << m;
        ASSERT_EQ(MaximumIdle(s), (p - 1) * (d.f + std::max<int64_t>(0, d.i - 2 * d.w)));
        ExpectPeaks(s, 2 * p - 1);
      }
    }
  }
}

TEST(ClosedForm, ZeroBubbleV) {
  for (int p = 1; p <= 12; ++p) {
    for (int m = 2 * p - 1; m <= 6 * p + 3; ++m) {
      for (const int64_t f : {1, 1000}) {
        const Simulation s = SimulateCase(
            {.schedule = "zb-v", .p = p, .m = m, .forward = f, .input = f, .weight = f}, 1);
        ASSERT_EQ(s.metrics.makespan.count(), (6 * m + p - 1) * f) << p << ' ' << m;
        ASSERT_EQ(MaximumSpanIdle(s), 0);
        ExpectPeaks(s, 2 * p);
      }
      // Not balanced: regression values.
      const Simulation uneven = SimulateCase(
          {.schedule = "zb-v", .p = p, .m = m, .forward = 1000, .input = 1200, .weight = 800}, 1);
      ASSERT_EQ(MaximumSpanIdle(uneven), 800 * (p - 1)) << p << ' ' << m;
      ASSERT_EQ(MaximumIdle(uneven), 1200 * (p - 1)) << p << ' ' << m;
    }
  }
  // Trimmed below m = 2p − 1 the order stalls: 30 instead of 27.
  EXPECT_EQ(SimulateCase({.schedule = "zb-v", .m = 4}, 1).metrics.makespan.count(), 30000);
}

// Idle time of the worst rank, where I ≤ F: (p/2 − 1)(O + F − W − min(I, W)).
TEST(ClosedForm, DualPipe) {
  uint64_t n = 0;
  for (int ranks = 2; ranks <= 12; ranks += 2) {
    for (int m = 2 * ranks; m <= 4 * ranks + 4; m += 2) {
      for (int draw = 0; draw < 8; ++draw) {
        const auto random = [&](int64_t least, int64_t most) {
          return least +
                 static_cast<int64_t>(RandomBits(3, n++) % static_cast<uint64_t>(most - least + 1));
        };
        const int64_t f = random(1, 2000);
        const int64_t i = random(1, f);
        const int64_t w = random(1, 2000);
        const int64_t o = random(std::max(f, i + w), f + i + w);
        const int64_t idle = (ranks / 2 - 1) * (o + f - w - std::min(i, w));
        const Simulation dual = SimulateCase({.schedule = "dualpipe",
                                              .p = ranks,
                                              .m = m,
                                              .forward = f,
                                              .backward = i + w,
                                              .input = i,
                                              .weight = w,
                                              .overlap = o},
                                             1);
        ASSERT_EQ(MaximumIdle(dual), idle)
            << ranks << ' ' << m << ' ' << f << ' ' << i << ' ' << w << ' ' << o;
        ExpectPeaks(dual, ranks + 1);
        // On half the ranks, with as many micro-batches as enter DualPipe at one end.
        const Simulation v = SimulateCase({.schedule = "dualpipe-v",
                                           .p = ranks / 2,
                                           .m = m / 2,
                                           .forward = f,
                                           .backward = i + w,
                                           .input = i,
                                           .weight = w,
                                           .overlap = o},
                                          1);
        ASSERT_EQ(MaximumIdle(v), idle) << ranks << ' ' << m;
        ExpectPeaks(v, ranks + 1);
      }
    }
  }
}

TEST(ClosedForm, DualPipeTestValues) {
  const auto idle = [](int64_t f, int64_t i, int64_t w, int64_t o) {
    return MaximumIdle(SimulateCase({.schedule = "dualpipe",
                                     .p = 8,
                                     .m = 20,
                                     .forward = f,
                                     .backward = i + w,
                                     .input = i,
                                     .weight = w,
                                     .overlap = o},
                                    1));
  };
  EXPECT_EQ(idle(1000, 1000, 1000, 3000), 3 * 2000);
  EXPECT_EQ(idle(1000, 1000, 1000, 2400), 3 * 1400);
  EXPECT_EQ(idle(1000, 1200, 800, 3000), 3 * 2400);
  EXPECT_EQ(idle(1200, 1000, 1000, 3200), 3 * 2400);
}

// A bound only, where stages differ, and only where all share one ratio of B to F: else a path may
// take the dear forwards of one stage and the dear backwards of another. The bubble rates that the
// zero-bubble authors simulated from measured times (arXiv 2401.10241, tables 5 and 9): of_span to
// 4 decimals; interleaved, one layer per chunk, within 0.005.
TEST(ClosedForm, PublishedBubbleRates) {
  struct Row {
    int p, m, chunks;
    int64_t f, i, w, hop;
    double zb_h1, one_f_one_b, interleaved;
  };
  const Row rows[] = {
      {8, 24, 3, 18522, 18086, 9337, 601, 0.1585, 0.2431, 0.1055},
      {8, 32, 3, 18513, 18086, 9331, 626, 0.1242, 0.1985, 0.0818},
      {8, 64, 3, 18546, 18097, 9321, 762, 0.0674, 0.1240, 0.0443},
      {16, 48, 3, 11347, 11248, 8132, 377, 0.1397, 0.2552, 0.1104},
      {16, 64, 3, 11307, 11254, 8101, 379, 0.1088, 0.2082, 0.0852},
      {16, 128, 3, 11325, 11308, 8109, 378, 0.0576, 0.1251, 0.0445},
  };
  for (const Row& row : rows) {
    const auto bubble = [&](const std::string& schedule, int chunks, GeneratorOptions options) {
      return SimulateCase({.schedule = schedule,
                           .p = row.p,
                           .m = row.m,
                           .latency = row.hop,
                           .forward = row.f / chunks,
                           .backward = (row.i + row.w) / chunks,
                           .input = row.i,
                           .weight = row.w,
                           .options = options},
                          1)
          .metrics.bubble.of_span;
    };
    EXPECT_NEAR(bubble("zb-h1", 1, {}), row.zb_h1, 0.00005) << row.p << ' ' << row.m;
    EXPECT_NEAR(bubble("1f1b", 1, {}), row.one_f_one_b, 0.00005) << row.p << ' ' << row.m;
    EXPECT_NEAR(bubble("interleaved-1f1b", row.chunks, {.chunks = row.chunks}), row.interleaved,
                0.005)
        << row.p << ' ' << row.m;
  }
}

int64_t MakespanOf1F1B(int m, const std::vector<int64_t>& forward,
                       const std::vector<int64_t>& backward) {
  const Case c{.schedule = "1f1b", .p = static_cast<int>(forward.size()), .m = m};
  const Program program = ProgramOf(c, 1);
  Costs costs = CostsOf(c, c.p);
  for (size_t s = 0; s < forward.size(); ++s) {
    costs.forward[s] = Nanoseconds{forward[s]};
    costs.backward[s] = Nanoseconds{backward[s]};
  }
  return Simulate(program, ActionTimes(program, costs)).metrics.makespan.count();
}

// 1F1B of uneven stages without transfers takes at most Σ(F + B) + (m − 1)(max F + max B): its
// longest path repeats forwards at one stage and backwards at another. The estimate of Alpa and
// others has max(F + B) there, which is the same where one stage has both maxima, as with F and B
// in one ratio, and not a bound where none has.
TEST(ClosedForm, UnevenStagesOf1F1BStayBelowTheEstimate) {
  int below = 0;
  for (uint64_t n = 0; n < 1200; ++n) {
    const auto draw = [&](uint64_t key, uint64_t bound) {
      return static_cast<int64_t>(RandomBits(4, 100 * n + key) % bound);
    };
    const auto p = static_cast<size_t>(1 + draw(0, 8));
    const int m = 1 + static_cast<int>(draw(1, 20));
    const bool one_ratio = n % 2 == 0;
    std::vector<int64_t> forward;
    std::vector<int64_t> backward;
    int64_t both = 0;
    for (size_t s = 0; s < p; ++s) {
      forward.push_back(draw(2 + s, 1000));
      backward.push_back(one_ratio ? forward[s] * static_cast<int64_t>(1 + n % 3)
                                   : draw(20 + s, 1000));
      both = std::max(both, forward[s] + backward[s]);
    }
    const int64_t sum = std::accumulate(forward.begin(), forward.end(), int64_t{0}) +
                        std::accumulate(backward.begin(), backward.end(), int64_t{0});
    const int64_t most = *std::max_element(forward.begin(), forward.end()) +
                         *std::max_element(backward.begin(), backward.end());
    const int64_t makespan = MakespanOf1F1B(m, forward, backward);
    ASSERT_LE(makespan, sum + (m - 1) * most) << n;
    if (most == both) {
      ++below;
      ASSERT_LE(makespan, sum + (m - 1) * both) << n;
    }
  }
  EXPECT_GT(below, 600);
  // Σ = 75 and max(F + B) = 27, so the estimate is 102; max F + max B = 38.
  EXPECT_EQ(MakespanOf1F1B(2, {19, 12, 4, 3}, {8, 5, 19, 5}), 105);
}

// The update of batch t in front of the first forward of batch t + 2. Where stage 0 runs ahead,
// batch t + 1 ends behind that update, w_0 pairs later: its reduction is on a cycle with the
// update. Where it does not (p = 1), the reduction of batch t + 1 is ready in front of that update
// already: only the lanes' own cycles are left, and the form max(m(F + B), ar) + u is too long by u
// at most.
TEST(ClosedForm, LateUpdates) {
  for (int p = 1; p <= 5; ++p) {
    for (int m = std::max(1, p - 1); m <= 2 * p + 2; ++m) {
      for (const int64_t update : {0, 50, 4000}) {
        for (const int64_t reduction : {0, 700, 3000, 9000, 9001, 50'000}) {
          const int64_t pairs = int64_t{m} * 3000;
          const int64_t slack = int64_t{m - (p - 1)} * 3000;
          const int64_t expected = p == 1
                                       ? std::max(pairs + update, reduction)
                                       : pairs + update + std::max<int64_t>(0, reduction - slack);
          ASSERT_EQ(Step({.schedule = "2bw",
                          .p = p,
                          .m = m,
                          .update = update,
                          .reduction = reduction,
                          .options = {.reduction = true, .late_update = true}}),
                    Fraction(expected))
              << p << ' ' << m << ' ' << update << ' ' << reduction;
        }
      }
    }
  }
}

}  // namespace
}  // namespace pipelag
