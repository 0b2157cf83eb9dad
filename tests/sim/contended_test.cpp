// Runs on a cluster: agreement with the uncontended play, sharing, duplex, cards, reductions.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "models/random.h"
#include "models/schedule/generators.h"
#include "sim/simulator.h"

namespace pipelag {
namespace {

constexpr int64_t kGiga = 1'000'000'000;

Costs UniformCosts(int stages, int64_t forward, int64_t backward, Bytes bytes = 0) {
  Costs costs;
  const auto n = static_cast<size_t>(stages);
  costs.forward.assign(n, Nanoseconds{forward});
  costs.backward.assign(n, Nanoseconds{backward});
  costs.update.assign(n, Nanoseconds{0});
  costs.activation_bytes = bytes;
  return costs;
}

LinkSpec Spec(int64_t bandwidth, int64_t latency = 0, bool full = true) {
  return {{bandwidth}, Nanoseconds{latency}, full};
}

Program Lowered(const char* schedule, int ranks, int microbatches, int64_t steps = 1,
                GeneratorOptions options = {}) {
  options.ranks = ranks;
  options.microbatches = microbatches;
  return Program(Generate(schedule, options), steps);
}

Simulation On(const Cluster& cluster, const Program& program, const Costs& costs,
              NetworkOptions network = {}) {
  network.cluster = &cluster;
  const ActionTimes times(program, costs);
  return Simulate(program, times, {.spans = true, .network = network});
}

// Every adjacent pair of ranks has a wire of its own per direction, so nothing is ever shared.
TEST(Contended, AgreesWithPlayWhereNothingIsShared) {
  for (uint64_t run = 0; run < 2000; ++run) {
    uint64_t key = 0;
    const auto draw = [&](uint64_t bound) {
      return static_cast<int64_t>(UniformBelow(RandomBits(run, ++key), bound));
    };
    const char* names[] = {"gpipe", "1f1b", "pipedream", "2bw"};
    const char* name = names[draw(4)];
    const int p = 1 + static_cast<int>(draw(6));
    const int m = 1 + static_cast<int>(draw(9));
    GeneratorOptions options{.warmup_slope = 1 + static_cast<int>(draw(3))};
    options.reduction = draw(2) == 1;
    if (std::string(name) != "pipedream") options.norm = draw(2) == 1;
    if (std::string(name) == "gpipe" || std::string(name) == "1f1b") options.barrier = draw(2) == 1;
    std::optional<Program> program;
    try {
      program = Lowered(name, p, m, 1 + draw(5), options);
    } catch (const Error&) {
      continue;  // not every slope fits every m
    }
    Costs costs = UniformCosts(p, 0, 0, draw(3) == 0 ? 0 : draw(3000));
    for (auto* times : {&costs.forward, &costs.backward, &costs.update}) {
      for (Nanoseconds& time : *times) time = Nanoseconds{draw(2000)};
    }
    costs.p2p_bandwidth = Bandwidth{draw(4) == 0 ? 0 : 1 + draw(5 * kGiga)};
    costs.p2p_latency = Nanoseconds{draw(2500)};
    const std::vector<Nanoseconds> reduction{Nanoseconds{draw(4000)}};
    const ActionTimes times(*program, costs, reduction);
    SimulationOptions play{.spans = true};
    SimulationOptions flows = play;
    const LinkSpec link{costs.p2p_bandwidth, costs.p2p_latency, true};
    const Cluster cluster = draw(2) == 0 ? LineCluster(p, link) : FullCluster(p, link);
    flows.network = {.cluster = &cluster, .plain_if_unshared = false};
    play.receive_slots = flows.receive_slots = static_cast<int>(draw(3));
    std::optional<Simulation> expected;
    try {
      expected = Simulate(*program, times, play);
    } catch (const Error&) {
      EXPECT_THROW(Simulate(*program, times, flows), Error);
      continue;
    }
    const Simulation simulated = Simulate(*program, times, flows);
    ASSERT_EQ(simulated.trace, expected->trace) << name << ' ' << p << ' ' << m << " run " << run;
    ASSERT_EQ(simulated.metrics.makespan, expected->metrics.makespan);
  }
}

// Without bandwidth nothing is shared either, whatever lanes run between two ranks.
TEST(Contended, AgreesWithPlayForEveryKnownSchedule) {
  for (const Generator& generator : Generators()) {
    int played = 0;
    for (const auto& [p, m] : {std::pair(2, 4), std::pair(4, 8), std::pair(4, 16)}) {
      std::optional<Program> program;
      try {
        program = Lowered(std::string(generator.name).c_str(), p, m, 4);
      } catch (const Error&) {
        continue;  // not every schedule exists for every size
      }
      ++played;
      const int stages = program->schedule().stages;
      Costs costs = UniformCosts(stages, 1000, 2000);
      costs.update.assign(static_cast<size_t>(stages), Nanoseconds{70});
      costs.backward_input.assign(static_cast<size_t>(stages), Nanoseconds{1100});
      costs.backward_weight.assign(static_cast<size_t>(stages), Nanoseconds{900});
      costs.p2p_latency = Nanoseconds{130};
      const ActionTimes times(*program, costs, {Nanoseconds{1500}});
      const Cluster cluster = FullCluster(p, {{}, Nanoseconds{130}, true});
      for (const int slots : {0, 2}) {
        SimulationOptions options{.receive_slots = slots, .spans = true};
        std::optional<Simulation> expected;
        try {
          expected = Simulate(*program, times, options);
        } catch (const Error&) {
          continue;  // too few slots
        }
        options.network.cluster = &cluster;
        EXPECT_EQ(Simulate(*program, times, options).trace, expected->trace)
            << generator.name << ' ' << p << ' ' << m << ' ' << slots;
      }
    }
    EXPECT_GT(played, 0) << generator.name;
  }
}

// Two pipelines side by side whose messages cross one thin link.
TEST(Contended, ReplicasShareAThinLink) {
  ClusterParts parts;
  for (const char* gpu : {"a0", "b0", "a1", "b1"}) {
    parts.devices.push_back({.name = gpu, .kind = Device::Kind::kGpu});
  }
  parts.devices.push_back({.name = "left", .kind = Device::Kind::kSwitch});
  parts.devices.push_back({.name = "right", .kind = Device::Kind::kSwitch});
  for (const auto& [from, to] :
       {std::pair(0, 4), std::pair(2, 4), std::pair(1, 5), std::pair(3, 5)}) {
    parts.links.push_back({from, to, Spec(0)});
  }
  parts.links.push_back({4, 5, Spec(kGiga, 50)});
  const Cluster cluster(parts);
  const Program program = Lowered("gpipe", 2, 1);
  const Costs costs = UniformCosts(2, 1000, 2000, 400);
  EXPECT_EQ(On(cluster, program, costs).metrics.makespan.count(), 6000 + 2 * 450);
  const Simulation both = On(cluster, program, costs, {.replicas = 2});
  EXPECT_EQ(both.metrics.makespan.count(), 6000 + 2 * 850);
  for (const Span& span : both.trace.spans) {
    if (!IsSend(span.kind)) continue;
    EXPECT_EQ((span.end - span.start).count(), 800) << SpanName(span);
  }
}

// F and B of two neighbours meet on the wire where more are under way than one.
TEST(Contended, HalfDuplexIsSlowerWhereBothDirectionsMeet) {
  const Program program = Lowered("2bw", 2, 8, 8, {.warmup_slope = 3});
  const Costs costs = UniformCosts(2, 1000, 1000, 1800);
  const Simulation full = On(LineCluster(2, Spec(kGiga)), program, costs);
  const Simulation half = On(LineCluster(2, Spec(kGiga, 0, false)), program, costs);
  const Simulation wide = On(LineCluster(2, Spec(2 * kGiga, 0, false)), program, costs);
  EXPECT_GT(half.metrics.makespan, full.metrics.makespan);
  EXPECT_LE(wide.metrics.makespan, full.metrics.makespan);
}

TEST(Contended, ReplicasShareTheNetworkCard) {
  // Stage 0 of both replicas on one node, stage 1 on the other: with one card per node the messages
  // of the two replicas halve each other's rate, with two they do not.
  const Program program = Lowered("gpipe", 2, 1);
  const Costs costs = UniformCosts(2, 1000, 2000, 500);
  const auto makespan = [&](int cards) {
    ClusterParts parts = NodesCluster({.nodes = 2,
                                       .gpus = 2,
                                       .nics = cards,
                                       .nvlink = Spec(100 * kGiga, 10),
                                       .nic = Spec(kGiga, 100)})
                             .parts();
    parts.ranks = {parts.ranks[0], parts.ranks[2], parts.ranks[1], parts.ranks[3]};
    return On(Cluster(parts), program, costs, {.replicas = 2}).metrics.makespan.count();
  };
  EXPECT_EQ(makespan(2), 6000 + 2 * (500 + 100));
  EXPECT_EQ(makespan(1), 6000 + 2 * (1000 + 100));
}

int64_t TailOfOneStage(ReductionAlgorithm algorithm, const Cluster& cluster, int replicas,
                       Bytes bytes) {
  const Program program = Lowered("gpipe", 1, 1, 1, {.reduction = true});
  const Simulation s =
      On(cluster, program, UniformCosts(1, 1000, 2000),
         {.replicas = replicas, .algorithm = algorithm, .gradient_bytes = {bytes}});
  return s.metrics.makespan.count() - 3000;
}

TEST(Contended, AllReduceOfReplicasTakesItsClosedForm) {
  for (const int n : {1, 2, 3, 4, 7, 8}) {
    const Cluster ring = RingCluster(n, Spec(kGiga, 30));
    const Bytes bytes = 840 * 100;
    EXPECT_EQ(TailOfOneStage(ReductionAlgorithm::kRing, ring, n, bytes),
              2 * (n - 1) * (bytes / n + 30));
    const Cluster full = FullCluster(n, Spec(kGiga, 30));
    int doublings = 0;
    while ((1 << doublings) < n) ++doublings;
    EXPECT_EQ(TailOfOneStage(ReductionAlgorithm::kTree, full, n, bytes),
              2 * doublings * (bytes + 30));
  }
  // 2 nodes of 4: inside 3 rounds each way of a quarter, across 2 rounds of an eighth per place;
  // all four places share one card.
  for (const int cards : {1, 2, 4}) {
    const Cluster nodes = NodesCluster({.nodes = 2,
                                        .gpus = 4,
                                        .nics = cards,
                                        .nvlink = Spec(10 * kGiga, 20),
                                        .nic = Spec(kGiga, 100)});
    EXPECT_EQ(TailOfOneStage(ReductionAlgorithm::kHierarchical, nodes, 8, 80'000),
              2 * 3 * (2'000 + 20) + 2 * (10'000 * (4 / cards) + 100));
  }
}

// A norm is a tree over the pipeline's ranks after the last backward.
TEST(Contended, NormTakesTheLatencyOfATree) {
  const Program program = Lowered("1f1b", 4, 4, 1, {.norm = true});
  const Costs costs = UniformCosts(4, 1000, 2000);
  const Cluster cluster = FullCluster(4, Spec(kGiga, 300));
  const int64_t without = On(cluster, program, costs).metrics.makespan.count();
  const Simulation with = On(cluster, program, costs, {.norm_bytes = 4});
  const auto last_backward = [&](const Simulation& s) {
    Nanoseconds end{0};
    for (const Span& span : s.trace.spans) {
      if (YieldsWeightGradient(span.kind)) end = std::max(end, span.end);
    }
    return end.count();
  };
  EXPECT_EQ(with.metrics.makespan.count(), last_backward(with) + 4 * (4 + 300));
  EXPECT_EQ(without, last_backward(with));
}

// In 2BW a reduction is hidden behind the compute of the next batch, but its bytes slow the
// pipeline's own messages where they share a wire.
TEST(Contended, ReductionsOverlapWithComputeAndContendWithMessages) {
  const int p = 4;
  const int replicas = 2;
  const Program with = Lowered("2bw", p, 8, 12, {.reduction = true, .late_update = true});
  const Costs costs = UniformCosts(p, 1000, 2000, 300);
  ClusterParts parts;
  for (int r = 0; r < p * replicas; ++r) {
    parts.devices.push_back({.name = std::to_string(r), .kind = Device::Kind::kGpu});
  }
  parts.devices.push_back({.name = "switch", .kind = Device::Kind::kSwitch});
  for (int r = 0; r < p * replicas; ++r) parts.links.push_back({r, p * replicas, Spec(kGiga, 25)});
  const Cluster star(parts);
  const auto run = [&](Bytes bytes) {
    return On(star, with, costs,
              {.replicas = replicas,
               .gradient_bytes = std::vector<Bytes>(static_cast<size_t>(p), bytes)});
  };
  const Simulation none = run(0);
  const Simulation small = run(3000);
  const Simulation huge = run(60'000);
  // Hidden: less is lost than half of what the reductions take.
  EXPECT_GE(small.metrics.makespan, none.metrics.makespan);
  EXPECT_LT((small.metrics.makespan - none.metrics.makespan).count(), 12 * 3050 / 2);
  EXPECT_GT(huge.metrics.makespan, small.metrics.makespan + Nanoseconds{12 * 10'000});
  Nanoseconds longest{0};
  for (const Span& span : small.trace.spans) {
    if (IsSend(span.kind)) longest = std::max(longest, span.end - span.start);
  }
  EXPECT_EQ(longest.count(), 600);  // halved by a reduction's message
}

TEST(Contended, MoreLatencyNeverShortens) {
  for (const char* schedule : {"gpipe", "1f1b", "2bw"}) {
    const Program program = Lowered(schedule, 5, 10, 3);
    int64_t last = 0;
    for (const int64_t latency : {0, 1, 10, 300, 1000, 4000}) {
      const int64_t makespan =
          On(LineCluster(5, Spec(kGiga, latency)), program, UniformCosts(5, 1000, 2000, 500))
              .metrics.makespan.count();
      EXPECT_GE(makespan, last) << schedule << latency;
      last = makespan;
    }
  }
}

// Where a rank stands on GPUs that are alike does not matter, nor which replica is asked.
TEST(Contended, PermutingEqualRanksChangesNothing) {
  const Cluster full = FullCluster(6, Spec(kGiga, 40));
  const Program program = Lowered("1f1b", 3, 6, 2, {.reduction = true});
  const Costs costs = UniformCosts(3, 1000, 2000, 700);
  const NetworkOptions options{.replicas = 2, .gradient_bytes = {9001, 9001, 9001}};
  const Simulation expected = On(full, program, costs, options);
  ClusterParts parts = full.parts();
  std::sort(parts.ranks.begin(), parts.ranks.end());
  for (int i = 0; i < 30; ++i) {
    std::next_permutation(parts.ranks.begin(), parts.ranks.end());
    std::next_permutation(parts.ranks.begin(), parts.ranks.end());
    EXPECT_EQ(On(Cluster(parts), program, costs, options).trace, expected.trace) << i;
  }
}

TEST(Contended, IsTheSameEveryTime) {
  const Cluster star =
      NodesCluster({.nodes = 2, .gpus = 4, .nvlink = Spec(7 * kGiga, 3), .nic = Spec(kGiga, 30)});
  const Program program = Lowered("2bw", 4, 6, 5, {.reduction = true});
  const NetworkOptions options{.replicas = 2, .gradient_bytes = {5001, 5003, 7001, 9001}};
  const Costs costs = UniformCosts(4, 1013, 2027, 777);
  const Simulation first = On(star, program, costs, options);
  const Simulation second = On(star, program, costs, options);
  EXPECT_EQ(first.trace, second.trace);
  EXPECT_EQ(first.metrics.step_time, second.metrics.step_time);
}

// Where nothing ever slows anything else, the step time is that of lanes with wires of their own.
TEST(Contended, StepTimeIsExactWhereNothingIsSlowed) {
  for (const char* schedule : {"1f1b", "gpipe", "2bw", "pipedream"}) {
    const Program program = Lowered(schedule, 4, 5, 3);
    Costs costs = UniformCosts(4, 1000, 2000);
    costs.activation_bytes = 40;
    costs.p2p_bandwidth = Bandwidth{kGiga};
    costs.p2p_latency = Nanoseconds{100};
    const SteadyState wires = ExactSteadyState(program, ActionTimes(program, costs));
    const Simulation line = On(LineCluster(4, Spec(kGiga, 100)), program, costs);
    EXPECT_TRUE(line.exact) << schedule;
    EXPECT_EQ(line.metrics.step_time, wires.step_time) << schedule;
    EXPECT_EQ(line.steady.critical_ranks, wires.critical_ranks) << schedule;
    EXPECT_EQ(line.steady.critical_lanes, wires.critical_lanes) << schedule;
  }
  // On the way from rank 0 to rank 1 lies rank 2, to which rank 1 sends: they meet on one channel.
  ClusterParts parts = LineCluster(3, Spec(kGiga, 100, false)).parts();
  parts.ranks = {0, 2, 1};
  const Program program = Lowered("gpipe", 3, 5, 3);
  const Simulation shared = On(Cluster(parts), program, UniformCosts(3, 1000, 2000, 3000));
  EXPECT_FALSE(shared.exact);
  EXPECT_TRUE(shared.steady.critical_ranks.empty());
}

// A ring of two: 2 rounds of half the gradients, on the way between the replicas alone.
TEST(Contended, ReductionsAloneHaveAnExactStepTime) {
  const Program program = Lowered("2bw", 2, 4, 3, {.reduction = true});
  const Costs costs = UniformCosts(2, 1000, 2000);
  const Cluster full = FullCluster(4, Spec(kGiga, 100));
  const NetworkOptions options{.replicas = 2, .gradient_bytes = {8000, 8000}};
  const Simulation s = On(full, program, costs, options);
  ASSERT_TRUE(s.exact);
  EXPECT_EQ(s.met->OfReduction(0), 2 * (4000 + 100));
  // 4 · (3000 + 2 · 100 / 2), and three pairs to hide 8200 behind.
  EXPECT_EQ(s.metrics.step_time, (StepTime{12'400, 1}));
}

TEST(Contended, OptionsThatDoNotFitAreNamed) {
  const Program program = Lowered("1f1b", 4, 4);
  const Costs costs = UniformCosts(4, 1, 1);
  EXPECT_THROW(On(LineCluster(3, Spec(1)), program, costs), Error);
  EXPECT_THROW(On(LineCluster(7, Spec(1)), program, costs, {.replicas = 2}), Error);
  EXPECT_THROW(On(LineCluster(4, Spec(1)), program, costs, {.replicas = 0}), Error);
  EXPECT_THROW(On(LineCluster(4, Spec(1)), program, costs, {.gradient_bytes = {1}}), Error);
}

}  // namespace
}  // namespace pipelag
