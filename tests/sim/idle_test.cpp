// Why ranks idle: closed forms of simulated runs, and shares that add up whatever the run.
#include "traces/idle.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "models/random.h"
#include "models/schedule/generators.h"
#include "sim/simulator.h"

namespace pipelag {
namespace {

struct Setting {
  std::string schedule = "1f1b";
  int p = 4;
  int m = 8;
  int64_t steps = 1;
  int64_t forward = 1000;
  int64_t backward = 2000;
  int64_t update = 0;
  int64_t latency = 0;
  int64_t occupancy = 0;
  int64_t reduction = 0;
  int receive_slots = 0;
  int slow_stage = -1;  ///< takes 400 and 800 more
  uint64_t ragged = 0;  ///< not 0: a seed by which every stage has times of its own
  GeneratorOptions options{};
};

Simulation Played(Setting s) {
  s.options.ranks = s.p;
  s.options.microbatches = s.m;
  const Program program(Generate(s.schedule, s.options), s.steps);
  Costs costs;
  const auto n = static_cast<size_t>(s.p);
  costs.forward.assign(n, Nanoseconds{s.forward});
  costs.backward.assign(n, Nanoseconds{s.backward});
  costs.update.assign(n, Nanoseconds{s.update});
  costs.p2p_latency = Nanoseconds{s.latency};
  costs.activation_bytes = s.occupancy;
  costs.p2p_bandwidth = Bandwidth{s.occupancy > 0 ? 1'000'000'000 : 0};
  if (s.slow_stage >= 0) {
    costs.forward[static_cast<size_t>(s.slow_stage)] += Nanoseconds{400};
    costs.backward[static_cast<size_t>(s.slow_stage)] += Nanoseconds{800};
  }
  for (size_t i = 0; s.ragged != 0 && i < n; ++i) {
    costs.forward[i] += Nanoseconds{static_cast<int64_t>(RandomBits(s.ragged, 2 * i) % 500)};
    costs.backward[i] += Nanoseconds{static_cast<int64_t>(RandomBits(s.ragged, 2 * i + 1) % 900)};
  }
  const ActionTimes times(program, costs, {Nanoseconds{s.reduction}});
  return Simulate(program, times, {.receive_slots = s.receive_slots, .spans = true});
}

void ExpectExact(const Simulation& run, const std::string& what) {
  const std::vector<IdleShares> shares = ExplainIdle(run.trace);
  ASSERT_EQ(shares.size(), run.metrics.ranks.size());
  for (size_t r = 0; r < shares.size(); ++r) {
    ASSERT_EQ(shares[r].Total(), run.metrics.ranks[r].idle) << what << " rank " << r;
  }
}

std::string Show(const IdleShares& shares) {
  std::string text;
  for (const NamedShare& named : NamedShares()) {
    text += std::string(named.name) + ' ' + std::to_string((shares.*named.share).count()) + ' ';
  }
  return text;
}

IdleShares Shares(int64_t warm_up, int64_t cool_down, int64_t latency = 0) {
  IdleShares shares;
  shares.warm_up = Nanoseconds{warm_up};
  shares.cool_down = Nanoseconds{cool_down};
  shares.latency = Nanoseconds{latency};
  return shares;
}

// Rank s waits s·F for its first input, then (p−1−s)(F+B) for its first gradient, then s·B for the
// others; every hop of the two diagonals costs its latency once.
TEST(Idle, OfGPipe) {
  for (int p = 1; p <= 6; ++p) {
    for (const int m : {1, 2, 7}) {
      for (const int64_t c : {0, 10, 700}) {
        const Simulation run = Played({.schedule = "gpipe", .p = p, .m = m, .latency = c});
        const auto shares = ExplainIdle(run.trace);
        for (int s = 0; s < p; ++s) {
          EXPECT_EQ(shares[static_cast<size_t>(s)],
                    Shares(s * 1000 + (p - 1 - s) * 3000, s * 2000, 2 * (p - 1) * c))
              << p << ' ' << m << ' ' << c << ' ' << s << ' '
              << Show(shares[static_cast<size_t>(s)]);
        }
      }
    }
  }
}

// Rank s waits s·F and (p−1−s)·B while the pipeline fills, (p−1−s)·F and s·B while it drains.
TEST(Idle, OfOneFOneB) {
  for (int p = 1; p <= 6; ++p) {
    for (int m = p; m <= 3 * p; ++m) {
      for (const int64_t steps : {1, 3}) {
        const auto shares = ExplainIdle(Played({.p = p, .m = m, .steps = steps}).trace);
        for (int s = 0; s < p; ++s) {
          EXPECT_EQ(shares[static_cast<size_t>(s)], Shares(steps * (s * 1000 + (p - 1 - s) * 2000),
                                                           steps * ((p - 1 - s) * 1000 + s * 2000)))
              << p << ' ' << m << ' ' << s << ' ' << Show(shares[static_cast<size_t>(s)]);
        }
      }
    }
  }
}

// The latency form of 1F1B: every rank idles (p−1)(F+B) for the schedule's sake and 2cH for the
// links'.
TEST(Idle, OfOneFOneBWithLatency) {
  for (int p = 2; p <= 7; ++p) {
    for (int m = 1; m <= 3 * p + 1; ++m) {
      for (const int64_t c : {1, 100, 450, 2500}) {
        const int64_t rest = m % p;
        const int64_t e = rest <= 1 ? rest : rest - 1;
        const int64_t hops = int64_t{p - 1} * (m / p) + (p - 2) + e;
        const auto shares = ExplainIdle(Played({.p = p, .m = m, .latency = c}).trace);
        for (int s = 0; s < p; ++s) {
          const IdleShares& own = shares[static_cast<size_t>(s)];
          EXPECT_EQ(own.latency.count(), 2 * c * hops)
              << p << ' ' << m << ' ' << c << ' ' << s << ' ' << Show(own);
          EXPECT_EQ((own.warm_up + own.cool_down).count(), (p - 1) * 3000)
              << p << ' ' << m << ' ' << c << ' ' << s << ' ' << Show(own);
        }
      }
    }
  }
}

/// Shares of all gaps that begin and end within the middle half of the run.
IdleShares MiddleHalf(const Trace& trace, int rank) {
  Nanoseconds end{0};
  for (const Span& span : trace.spans) end = std::max(end, span.end);
  IdleShares shares;
  for (const IdleGap& gap : FindIdleGaps(trace)) {
    if (gap.rank == rank && gap.start > end / 4 && gap.end < end * 3 / 4) shares += gap.shares;
  }
  return shares;
}

TEST(Idle, OfTwoBwInSteadyStateIsLatencyAlone) {
  for (int p = 2; p <= 6; ++p) {
    for (const int m : {p, p + 1, 2 * p}) {
      for (const int64_t c : {50, 300}) {
        const Simulation run =
            Played({.schedule = "2bw", .p = p, .m = m, .steps = 24, .latency = c});
        for (int s = 0; s < p; ++s) {
          const IdleShares own = MiddleHalf(run.trace, s);
          EXPECT_GT(own.latency.count(), 0);
          EXPECT_EQ(own, Shares(0, 0, own.latency.count()))
              << p << ' ' << m << ' ' << c << ' ' << s << ' ' << Show(own);
        }
      }
    }
  }
}

TEST(Idle, BesideASlowStageIsImbalance) {
  for (const int64_t c : {0, 50}) {
    for (int slow = 0; slow < 4; ++slow) {
      const Simulation run =
          Played({.schedule = "2bw", .steps = 24, .latency = c, .slow_stage = slow});
      for (int s = 0; s < 4; ++s) {
        const IdleShares own = MiddleHalf(run.trace, s);
        IdleShares expected;
        expected.imbalance = own.Total();
        if (s != slow) {
          EXPECT_GT(own.Total().count(), 0);
        }
        EXPECT_EQ(own, expected) << c << ' ' << slow << ' ' << s << ' ' << Show(own);
      }
    }
  }
  // GPipe: a rank behind the slow one waits 400 for each of the m micro-batches, one before it 800
  // for each gradient.
  const auto shares = ExplainIdle(Played({.schedule = "gpipe", .slow_stage = 1}).trace);
  for (const size_t rank : {0, 2, 3}) {
    EXPECT_EQ(shares[rank].imbalance.count(), 8 * 1200) << rank << Show(shares[rank]);
    EXPECT_EQ((shares[rank].warm_up + shares[rank].cool_down).count(), 3 * 3000);
  }
}

TEST(Idle, OnUpdatesAndReductions) {
  // 4.12: what an early reduction stands in the way; a late one fits the slack.
  const GeneratorOptions early{.reduction = true, .late_update = false};
  const GeneratorOptions late{.reduction = true, .late_update = true};
  const auto middle = [](const GeneratorOptions& options) {
    return MiddleHalf(
        Played(
            {.schedule = "2bw", .steps = 24, .update = 50, .reduction = 1500, .options = options})
            .trace,
        1);
  };
  const IdleShares stalled = middle(early);
  EXPECT_GT(stalled.update.count(), 0);
  EXPECT_EQ(stalled.update, stalled.Total()) << Show(stalled);
  const IdleShares hidden = middle(late);
  EXPECT_EQ(hidden.Total().count(), 0) << Show(hidden);
  // A flush pays its reduction in full, once per step.
  const auto flush =
      ExplainIdle(Played({.steps = 2, .reduction = 1500, .options = {.reduction = true}}).trace);
  EXPECT_EQ(flush[0].update.count(), 3000) << Show(flush[0]);
}

TEST(Idle, OnTheWireAndBehindOtherMessages) {
  const auto wire = ExplainIdle(Played({.schedule = "gpipe", .occupancy = 300}).trace);
  for (const IdleShares& own : wire) EXPECT_EQ(own.bandwidth.count(), 2 * 3 * 300) << Show(own);
  // A wire slower than the stages: message k queues behind k others. What all ranks share is the
  // first hop; then the wire is what they wait for.
  const auto queue =
      ExplainIdle(Played({.schedule = "gpipe", .p = 2, .m = 4, .occupancy = 1500}).trace);
  EXPECT_EQ(queue[1].contention.count() + queue[1].bandwidth.count(),
            queue[1].Total().count() - 1000 - 2000)
      << Show(queue[1]);
  EXPECT_GT(queue[1].contention.count(), 0) << Show(queue[1]);
  const auto slots = ExplainIdle(
      Played({.schedule = "gpipe", .p = 2, .m = 6, .occupancy = 500, .receive_slots = 1}).trace);
  EXPECT_GT(slots[1].contention.count(), 0) << Show(slots[1]);
}

/// Longer actions and later messages by luck, as a measurement shows them: played once more in the
/// order of the trace. Hops keep their length or grow; starts come late at times.
Trace Jittered(const Trace& trace, uint64_t seed) {
  Trace jittered = trace;
  uint64_t next = 0;
  const auto below = [&](uint64_t bound) {
    return static_cast<int64_t>(UniformBelow(RandomBits(seed, next++), bound));
  };
  const Span* last = nullptr;
  Nanoseconds free{0};
  for (Span& span : jittered.spans) {
    if (last == nullptr || last->rank != span.rank ||
        LaneNumber(*last, trace.ranks) != LaneNumber(span, trace.ranks)) {
      free = Nanoseconds{0};
    }
    const Nanoseconds length = span.end - span.start;
    span.start = std::max(free, span.start + Nanoseconds{below(400)});
    span.end = span.start + length + Nanoseconds{below(300) - 100};
    span.end = std::max(span.start, span.end);
    if (OnComputeLane(span.kind)) free = span.end;
    last = &span;
  }
  SortSpans(jittered);
  return jittered;
}

TEST(Idle, SharesAddUpWhateverTheRun) {
  const std::vector<std::string> schedules = {"gpipe", "1f1b", "pipedream", "2bw"};
  uint64_t seed = 1;
  uint64_t next = 0;
  const auto below = [&](uint64_t bound) {
    return static_cast<int64_t>(UniformBelow(RandomBits(seed, next++), bound));
  };
  for (; seed <= 300; ++seed) {
    next = 0;
    Setting s;
    s.schedule = schedules[static_cast<size_t>(below(4))];
    s.p = static_cast<int>(1 + below(5));
    s.m = static_cast<int>(s.p + below(6));
    s.steps = 1 + below(4);
    s.forward = 1 + below(2000);
    s.backward = below(3) == 0 ? 1 : below(3000);
    s.update = below(2) * below(500);
    s.latency = below(2) * below(1500);
    s.occupancy = below(2) * below(2500);
    s.receive_slots = static_cast<int>(below(2) * (1 + below(3)));
    if (below(2) == 0) s.slow_stage = static_cast<int>(below(static_cast<uint64_t>(s.p)));
    if (below(2) == 0) s.ragged = seed;
    if (below(3) == 0) {
      s.options.reduction = true;
      s.reduction = below(2000);
    }
    if (below(4) == 0) s.options.barrier = s.schedule == "gpipe" || s.schedule == "1f1b";
    const Simulation run = Played(s);
    const std::string what = s.schedule + " seed " + std::to_string(seed);
    ExpectExact(run, what);
    const Trace jittered = Jittered(run.trace, seed);
    const Metrics metrics = ComputeMetrics(jittered);
    const auto shares = ExplainIdle(jittered);
    for (size_t r = 0; r < shares.size(); ++r) {
      ASSERT_EQ(shares[r].Total(), metrics.ranks[r].idle) << what << " rank " << r;
      for (const NamedShare& named : NamedShares()) {
        ASSERT_GE((shares[r].*named.share).count(), 0) << what << ' ' << named.name;
      }
    }
  }
}

// One action that stalls: whoever waits for it, directly or through others, waits for noise.
TEST(Idle, BehindAStallIsNoise) {
  Trace trace = Played({.schedule = "gpipe", .p = 3, .m = 5}).trace;
  const Nanoseconds stall{10'000};
  // F of micro-batch 3 on rank 0 takes longer, and all that comes after it is as much later.
  const Nanoseconds from{3000};
  for (Span& span : trace.spans) {
    const bool stalled = span.rank == 0 && IsForward(span.kind) && span.microbatch == 3;
    const bool behind = span.start > from + Nanoseconds{1000 * span.rank} ||
                        !IsForward(span.kind) || span.microbatch > 3;
    const bool before = IsForward(span.kind) && span.microbatch < 3;
    if (OnComputeLane(span.kind) && !stalled && !before && (behind || span.microbatch == 3)) {
      span.start += stall;
    }
    if (OnComputeLane(span.kind) && !before) span.end += stall;
  }
  std::erase_if(trace.spans, [](const Span& s) { return !OnComputeLane(s.kind); });
  SortSpans(trace);
  const auto shares = ExplainIdle(trace);
  EXPECT_EQ(shares[0].noise.count(), 0) << Show(shares[0]);
  EXPECT_EQ(shares[1].noise, stall) << Show(shares[1]);
  EXPECT_EQ(shares[2].noise, stall) << Show(shares[2]);
}

}  // namespace
}  // namespace pipelag
