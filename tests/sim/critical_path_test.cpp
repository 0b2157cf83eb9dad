// The critical path: as long as the run, without a hole, and what closed forms say it consists of.
#include "traces/critical_path.h"

#include <gtest/gtest.h>

#include "models/random.h"
#include "models/schedule/generators.h"
#include "sim/simulator.h"

namespace pipelag {
namespace {

Simulation Played(const std::string& schedule, int p, int m, int64_t steps, int64_t latency,
                  int64_t occupancy, int64_t reduction = 0, uint64_t ragged = 0) {
  const GeneratorOptions options{.ranks = p, .microbatches = m, .reduction = reduction > 0};
  const Program program(Generate(schedule, options), steps);
  Costs costs;
  const auto n = static_cast<size_t>(p);
  costs.forward.assign(n, Nanoseconds{1000});
  costs.backward.assign(n, Nanoseconds{2000});
  costs.update.assign(n, Nanoseconds{reduction > 0 ? 30 : 0});
  for (size_t i = 0; ragged != 0 && i < n; ++i) {
    costs.forward[i] += Nanoseconds{static_cast<int64_t>(RandomBits(ragged, i) % 700)};
  }
  costs.p2p_latency = Nanoseconds{latency};
  costs.activation_bytes = occupancy;
  costs.p2p_bandwidth = Bandwidth{1'000'000'000};
  return Simulate(program, ActionTimes(program, costs, {Nanoseconds{reduction}}), {.spans = true});
}

Nanoseconds Of(const CriticalPath& path, PathWork work) {
  return path.by_work[static_cast<size_t>(work)];
}

TEST(CriticalPath, OfGPipe) {
  const Simulation run = Played("gpipe", 4, 6, 1, 10, 7);
  const CriticalPath path = FindCriticalPath(run.trace);
  EXPECT_EQ(Of(path, PathWork::kCompute).count(), (6 + 3) * 3000);
  EXPECT_EQ(Of(path, PathWork::kLatency).count(), 6 * 10);
  EXPECT_EQ(Of(path, PathWork::kBandwidth).count(), 6 * 7);
  EXPECT_EQ(path.pieces.front().name, "0F0");
  EXPECT_EQ(path.pieces.back().name, "0B5");
}

TEST(CriticalPath, IsAsLongAsTheRunAndHasNoHole) {
  uint64_t seed = 0;
  for (const char* schedule : {"gpipe", "1f1b", "pipedream", "2bw"}) {
    for (const int p : {1, 2, 5}) {
      for (const int64_t latency : {0, 130}) {
        for (const int64_t reduction : {0, 900}) {
          const Simulation run =
              Played(schedule, p, p + 2, 3, latency, latency / 2, reduction, ++seed);
          const CriticalPath path = FindCriticalPath(run.trace);
          Nanoseconds at{0};
          for (const PathPiece& piece : path.pieces) {
            ASSERT_EQ(piece.start, at) << schedule << ' ' << p << ' ' << piece.name;
            ASSERT_GT(piece.end, piece.start);
            at = piece.end;
          }
          ASSERT_EQ(at, run.metrics.makespan) << schedule << ' ' << p;
          Nanoseconds sum{0};
          for (const Nanoseconds part : path.by_work) sum += part;
          EXPECT_EQ(sum, run.metrics.makespan);
          Nanoseconds of_ranks{0};
          for (const Nanoseconds part : path.by_rank) of_ranks += part;
          EXPECT_EQ(of_ranks, Of(path, PathWork::kCompute) + Of(path, PathWork::kUpdate));
          EXPECT_EQ(Of(path, PathWork::kOverhead).count(), 0);
        }
      }
    }
  }
}

TEST(CriticalPath, RunsThroughTheReductionsOfAFlush) {
  const CriticalPath path = FindCriticalPath(Played("1f1b", 3, 4, 2, 0, 0, 900).trace);
  EXPECT_EQ(Of(path, PathWork::kReduction).count(), 2 * 900);
  EXPECT_EQ(Of(path, PathWork::kUpdate).count(), 2 * 30);
}

}  // namespace
}  // namespace pipelag
