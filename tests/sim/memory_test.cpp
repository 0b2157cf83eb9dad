// Memory over simulated runs, to the byte.
#include "traces/memory.h"

#include <gtest/gtest.h>

#include "models/schedule/generators.h"
#include "sim/simulator.h"

namespace pipelag {
namespace {

constexpr StageMemory kStage{.weights = 1000,
                             .gradients = 500,
                             .optimizer = 4000,
                             .activation = 70,
                             .freed_at_input = 20,
                             .message = 3};

Costs Times(int stages) {
  const auto n = static_cast<size_t>(stages);
  Costs costs;
  costs.forward.assign(n, Nanoseconds{1000});
  costs.backward.assign(n, Nanoseconds{2000});
  costs.backward_input.assign(n, Nanoseconds{1000});
  costs.backward_weight.assign(n, Nanoseconds{1000});
  costs.update.assign(n, Nanoseconds{0});
  return costs;
}

std::vector<RankMemory> Memory(const Schedule& schedule, int64_t steps,
                               const StageMemory& stage = kStage) {
  const Program program(schedule, steps);
  const ActionTimes times(program, Times(schedule.stages));
  const MemorySizes sizes{std::vector<StageMemory>(static_cast<size_t>(schedule.stages), stage), 0};
  const Simulation run = Simulate(program, times, {.spans = true});
  return MemoryOverTime(run.trace, sizes, StandingMemoryOf(program, sizes));
}

std::vector<RankMemory> Memory(const std::string& schedule, int p, int m, int64_t steps) {
  return Memory(Generate(schedule, {.ranks = p, .microbatches = m}), steps);
}

Bytes Buffers(int p, int rank, int forward, int backward) {
  return 3 * ((rank > 0 ? forward : 0) + (rank < p - 1 ? backward : 0));
}

TEST(Memory, OfGPipeHoldsAllMicrobatches) {
  const auto ranks = Memory("gpipe", 4, 6, 2);
  for (int r = 0; r < 4; ++r) {
    const RankMemory& rank = ranks[static_cast<size_t>(r)];
    EXPECT_EQ(rank.standing, (StandingMemory{1000, 0, 500, 4000, Buffers(4, r, 6, 6)}));
    EXPECT_EQ(rank.peak_activations, 6 * 70);
    EXPECT_EQ(rank.peak, 5500 + Buffers(4, r, 6, 6) + 6 * 70);
    // When the sixth forward starts.
    EXPECT_EQ(rank.peak_time.count(), (r + 5) * 1000);
    EXPECT_EQ(rank.curve.back().bytes, rank.standing.Total());
  }
}

TEST(Memory, OfOneFOneBHoldsOnePerStageBehind) {
  const auto ranks = Memory("1f1b", 4, 6, 1);
  for (int r = 0; r < 4; ++r) {
    EXPECT_EQ(ranks[static_cast<size_t>(r)].peak_activations, (4 - r) * 70);
  }
}

TEST(Memory, OfAsynchronousSchedulesStashesWeights) {
  for (const RankMemory& rank : Memory("2bw", 4, 6, 12)) {
    EXPECT_EQ(rank.standing.weights, 1000);
    EXPECT_EQ(rank.standing.stash, 1000);
  }
  const auto pipedream = Memory("pipedream", 4, 1, 20);
  for (int r = 0; r < 4; ++r) {
    const RankMemory& rank = pipedream[static_cast<size_t>(r)];
    EXPECT_EQ(rank.standing.stash, (4 - r - 1) * 1000);
    EXPECT_EQ(rank.standing.gradients, 500);
    EXPECT_EQ(rank.peak_activations, (4 - r) * 70);
  }
  // A late update sums two batches at once wherever forwards of the next one come first.
  GeneratorOptions late{.ranks = 4, .microbatches = 6, .reduction = true, .late_update = true};
  const Program program(Generate("2bw", late), 1);
  const MemorySizes sizes{std::vector<StageMemory>(4, kStage), 0};
  const auto standing = StandingMemoryOf(program, sizes);
  for (int stage = 0; stage < 4; ++stage) {
    EXPECT_EQ(standing[static_cast<size_t>(stage)].gradients,
              500 * program.versions(stage).gradient_buffers);
  }
}

/// ZB-H1 by its definition: rank s delays its W by s.
Schedule ZbH1(int p, int m) {
  Schedule schedule;
  schedule.name = "zb-h1 by hand";
  schedule.ranks = schedule.stages = p;
  schedule.microbatches = m;
  for (int s = 0; s < p; ++s) {
    schedule.placement.push_back(s);
    std::vector<Action> body;
    const auto add = [&](ActionKind kind, int microbatch) {
      body.push_back({microbatch, static_cast<uint16_t>(s), kind, false});
    };
    int forwards = 0;
    int weights = 0;
    while (forwards < std::min(m, p - 1 - s)) add(ActionKind::kForward, forwards++);
    for (int k = 0; k < m; ++k) {
      if (forwards < m) add(ActionKind::kForward, forwards++);
      add(ActionKind::kBackwardInput, k);
      if (k >= s) add(ActionKind::kBackwardWeight, weights++);
    }
    while (weights < m) add(ActionKind::kBackwardWeight, weights++);
    add(ActionKind::kUpdate, 0);
    schedule.body.push_back(std::move(body));
  }
  return schedule;
}

TEST(Memory, OfZbH1HoldsPOnEveryRank) {
  StageMemory whole = kStage;
  whole.freed_at_input = 0;
  for (const RankMemory& rank : Memory(ZbH1(4, 9), 1, whole)) {
    EXPECT_EQ(rank.peak_activations, 4 * 70);
  }
  // What is freed at I is not there while a W waits: rank s, with s of them, holds p − s whole
  // ones.
  const auto parts = Memory(ZbH1(4, 9), 1);
  for (int r = 0; r < 4; ++r) {
    EXPECT_EQ(parts[static_cast<size_t>(r)].peak_activations, 4 * 70 - r * 20) << r;
  }
}

/// Zero-bubble schedules with everything recomputed: what I computed again stays until W.
TEST(Memory, GrowsAtInputIfWNeedsMoreThanWasKept) {
  StageMemory recomputed = kStage;
  recomputed.freed_at_input = -30;
  const auto ranks = Memory(ZbH1(4, 9), 1, recomputed);
  for (int r = 0; r < 4; ++r) {
    EXPECT_EQ(ranks[static_cast<size_t>(r)].peak_activations, 4 * 70 + r * 30 + 30) << r;
    EXPECT_EQ(ranks[static_cast<size_t>(r)].curve.back().bytes,
              ranks[static_cast<size_t>(r)].standing.Total());
  }
}

TEST(Memory, BeyondTheDeviceIsAFinding) {
  const auto ranks = Memory("1f1b", 2, 4, 1);
  EXPECT_TRUE(BeyondMemory(ranks, 0).empty());
  EXPECT_TRUE(BeyondMemory(ranks, ranks[0].peak).empty());
  const auto findings = BeyondMemory(ranks, ranks[0].peak - 10);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].rank, 0);
  EXPECT_NE(findings[0].message.find("rank 0 needs"), std::string::npos) << findings[0].message;
  EXPECT_NE(findings[0].message.find("10 B more"), std::string::npos) << findings[0].message;
}

TEST(Memory, SizesMustFitTheSchedule) {
  const Program program(Generate("1f1b", {.ranks = 2, .microbatches = 2}), 1);
  EXPECT_THROW(StandingMemoryOf(program, {{kStage}, 0}), Error);
  StageMemory wrong = kStage;
  wrong.weights = -1;
  EXPECT_THROW(StandingMemoryOf(program, {{kStage, wrong}, 0}), Error);
  wrong = kStage;
  wrong.freed_at_input = 71;
  EXPECT_THROW(StandingMemoryOf(program, {{kStage, wrong}, 0}), Error);
}

}  // namespace
}  // namespace pipelag
