// Devices that only take their time: the run is the simulator's but for what the machine is late,
// or what ranks on the same cores keep each other waiting.
#include "runtime/emulated/emulate.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <thread>
#include <tuple>

#include "models/schedule/generators.h"
#include "models/schedule/replicate.h"
#include "runtime/emulated/cores.h"
#include "runtime/runnable.h"
#include "sim/simulator.h"
#include "runtime/compute_around.h"
#include "tests/runtime/every_schedule.h"
#include "traces/metrics.h"

namespace pipelag {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

Costs Times(int stages, Nanoseconds forward) {
  const auto count = static_cast<size_t>(stages);
  Costs costs;
  costs.forward.assign(count, forward);
  costs.backward_input.assign(count, forward);
  costs.backward_weight.assign(count, forward);
  costs.update.assign(count, forward / 2);
  costs.activation_bytes = 4096;
  costs.p2p_latency = microseconds(100);
  costs.p2p_bandwidth = {40'960'000};  // 100 us a message
  return costs;
}

using Key = std::tuple<int, ActionKind, int, int64_t, int>;

std::map<Key, Span> ByAction(const Trace& trace) {
  std::map<Key, Span> spans;
  for (const Span& span : trace.spans) {
    spans[{span.rank, span.kind, span.stage, span.microbatch, span.peer}] = span;
  }
  return spans;
}

/// Everything the simulator does is done, in its order on every lane, never before its time is over
/// and never before what it needs.
void ExpectConsistent(const Program& program, const Costs& costs, Nanoseconds reduction,
                      const Trace& trace) {
  const Trace simulated =
      Simulate(program, ActionTimes(program, costs, {reduction}), {.spans = true}).trace;
  const auto real = ByAction(trace);
  const auto ideal = ByAction(simulated);
  ASSERT_EQ(real.size(), ideal.size());
  for (const auto& [key, span] : ideal) {
    const auto found = real.find(key);
    ASSERT_NE(found, real.end()) << SpanName(span);
    const Span& own = found->second;
    EXPECT_GE(own.end - own.start, span.end - span.start) << SpanName(span);
    EXPECT_GE(own.end, span.end) << SpanName(span);  // the simulator is never late
    EXPECT_EQ(own.weight_version, span.weight_version) << SpanName(span);
    EXPECT_EQ(own.bytes, span.bytes) << SpanName(span);
  }
  ASSERT_EQ(trace.spans.size(), simulated.spans.size());
  for (size_t i = 0; i < trace.spans.size(); ++i) {
    const Span& a = trace.spans[i];
    const Span& b = simulated.spans[i];
    // The order on every lane, receives by their delivery.
    EXPECT_EQ(std::tuple(a.rank, LaneNumber(a, trace.ranks)),
              std::tuple(b.rank, LaneNumber(b, trace.ranks)));
    if (!OnComputeLane(a.kind)) continue;
    EXPECT_EQ(SpanName(a), SpanName(b));
    if (i > 0 && trace.spans[i - 1].rank == a.rank) {
      EXPECT_GE(a.start, trace.spans[i - 1].end) << SpanName(a);
    }
  }
}

/// `cores`: 0 for stages that sleep.
Trace RunOn(int64_t cores, const Program& program, const Costs& costs, Nanoseconds reduction,
            Nanoseconds deadline = std::chrono::minutes(1), const Interposer& interpose = {}) {
  return cores == 0 ? Emulate(program, costs, reduction, deadline, interpose)
                    : EmulateOnCores(program, costs, cores, reduction, deadline, interpose);
}

struct Case {
  std::string schedule;
  int ranks;
  int microbatches;
};

class Emulated : public testing::TestWithParam<Case> {};

TEST_P(Emulated, IsTheSimulatedRunButLater) {
  const Case& c = GetParam();
  const Program program = Unpaired(
      Program(Generate(c.schedule, {.ranks = c.ranks, .microbatches = c.microbatches}), 2));
  const Costs costs = Times(program.schedule().stages, microseconds(500));
  ExpectConsistent(program, costs, Nanoseconds{0},
                   Emulate(program, costs, Nanoseconds{0}, std::chrono::minutes(1)));
}

Nanoseconds WorkOf(const Simulation& simulation) {
  Nanoseconds work{0};
  for (const RankMetrics& rank : simulation.metrics.ranks) work += rank.totals.busy;
  return work;
}

// All ranks on one core, which is nobody's twice.
TEST_P(Emulated, BusyOnOneCoreIsTheSimulatedRunButLater) {
  const Case& c = GetParam();
  const Program program = Unpaired(
      Program(Generate(c.schedule, {.ranks = c.ranks, .microbatches = c.microbatches}), 2));
  const Costs costs = Times(program.schedule().stages, microseconds(100));
  const Trace trace = EmulateOnCores(program, costs, 1, Nanoseconds{0}, std::chrono::minutes(1));
  ExpectConsistent(program, costs, Nanoseconds{0}, trace);
  const Nanoseconds work = WorkOf(Simulate(program, ActionTimes(program, costs)));
  // A thousandth for clocks that do not go alike.
  EXPECT_GE(ComputeMetrics(trace).makespan, work - work / 1000);
}

INSTANTIATE_TEST_SUITE_P(Schedules, Emulated,
                         testing::Values(Case{"1f1b", 16, 16}, Case{"2bw", 16, 16},
                                         Case{"zb-h1", 16, 16}, Case{"interleaved-1f1b", 16, 16},
                                         Case{"dualpipe", 4, 8}, Case{"zb-v", 1, 2},
                                         Case{"gpipe", 64, 4}),
                         [](const auto& parameter) { return CaseName(parameter.param.schedule); });

// Reductions begin as soon as the gradients are there, also behind those of another chunk.
TEST(Emulation, OfReplicasReducesGradientsAsTheSimulatorDoes) {
  const Nanoseconds reduction = milliseconds(2);
  for (const char* schedule :
       {"1f1b", "2bw", "interleaved-1f1b", "zb-v", "pipedream", "dualpipe"}) {
    SCOPED_TRACE(schedule);
    const bool norm = schedule != std::string("pipedream");
    const GeneratorOptions options{.ranks = 2, .microbatches = 4, .reduction = true, .norm = norm};
    const Program program = Unpaired(Program(Replicate(Generate(schedule, options), 2), 3));
    const Costs costs = Times(program.schedule().stages, microseconds(500));
    for (const int64_t cores : {int64_t{0}, UsableCores()}) {
      const Trace trace = RunOn(cores, program, costs, reduction);
      ExpectConsistent(program, costs, reduction, trace);
      for (const Span& span : trace.spans) {
        if (span.kind != ActionKind::kAllReduce) continue;
        const bool gradients =
            MovesGradients(program.schedule().groups[static_cast<size_t>(span.stage)]);
        EXPECT_EQ(span.end - span.start, gradients ? reduction : Nanoseconds{0});
      }
    }
  }
}

// Whoever takes no time waits no less for those who do: at the end of a run nobody else does.
TEST(Emulation, IsOverWhenTheClockSaysSo) {
  const Nanoseconds reduction = milliseconds(20);
  for (const char* schedule : {"1f1b", "2bw", "zb-v", "pipedream", "paci", "dualpipe"}) {
    SCOPED_TRACE(schedule);
    const bool waits = schedule != std::string("pipedream") && schedule != std::string("paci");
    const Program program = Unpaired(Program(
        Replicate(
            Generate(
                schedule,
                {.ranks = 2, .microbatches = 4, .reduction = true, .norm = waits, .tied = waits}),
            2),
        2));
    Costs costs = Times(program.schedule().stages, microseconds(500));
    for (Nanoseconds& time : costs.update) time = Nanoseconds{0};
    for (auto* times : {&costs.forward, &costs.backward_weight}) times->front() = Nanoseconds{0};
    const auto begun = std::chrono::steady_clock::now();
    const Trace trace = Emulate(program, costs, reduction, std::chrono::minutes(1));
    EXPECT_GE(std::chrono::steady_clock::now() - begun, ComputeMetrics(trace).makespan);
    ExpectConsistent(program, costs, reduction, trace);
    // What ends the run is an update: every reduction is waited for.
    Nanoseconds updated{0};
    for (const Span& span : trace.spans) {
      if (span.kind == ActionKind::kUpdate) updated = std::max(updated, span.end);
    }
    for (const Span& span : trace.spans) EXPECT_LE(span.end, updated) << SpanName(span);
  }
}

// Devices have their work queued: nothing but messages can be late.
TEST(Emulation, OfOneRankIsTheSimulationToTheNanosecond) {
  for (const char* schedule : {"gpipe", "zb-h1", "zb-v"}) {
    SCOPED_TRACE(schedule);
    const Program program(Generate(schedule, {.ranks = 1, .microbatches = 8}), 2);
    Costs costs = Times(program.schedule().stages, microseconds(50));
    costs.backward = costs.forward;
    const Trace trace = Emulate(program, costs, Nanoseconds{0}, std::chrono::minutes(1));
    const Trace simulated = Simulate(program, ActionTimes(program, costs), {.spans = true}).trace;
    ASSERT_EQ(trace.spans.size(), simulated.spans.size());
    for (size_t i = 0; i < trace.spans.size(); ++i) {
      EXPECT_EQ(SpanName(trace.spans[i]), SpanName(simulated.spans[i]));
      EXPECT_EQ(trace.spans[i].start, simulated.spans[i].start);
      EXPECT_EQ(trace.spans[i].end, simulated.spans[i].end);
    }
  }
}

TEST(Emulation, NeedsATimeForEveryKindAndStage) {
  const Program program(Generate("zb-h1", {.ranks = 2, .microbatches = 2}), 1);
  Costs costs = Times(2, microseconds(100));
  costs.backward = costs.backward_input;
  costs.backward_input.clear();
  EXPECT_THROW(Emulate(program, costs, Nanoseconds{0}, milliseconds(100)), Error);
  EXPECT_THROW(Emulate(program, Times(3, microseconds(100)), Nanoseconds{0}, milliseconds(100)),
               Error);
}

/// Fails at once.
class Broken : public ComputeAround {
 public:
  using ComputeAround::ComputeAround;
  EventPtr Start(const ComputeTask&, std::span<const EventPtr>) override {
    throw Error("the device is broken");
  }
};

TEST(Emulation, IsNotBusyBeyondTheEndOfTheRunNorSleepsThroughIt) {
  const Program program(Generate("gpipe", {.ranks = 2, .microbatches = 2}), 1);
  for (const int64_t cores : {0, 1}) {
    std::unique_ptr<Broken> broken;
    const auto begun = std::chrono::steady_clock::now();
    EXPECT_THROW(RunOn(cores, program, Times(2, std::chrono::hours(1)), Nanoseconds{0},
                       std::chrono::hours(24),
                       [&](int rank, RankBackend inner, RunControl&) {
                         if (rank == 0) return inner;
                         broken = std::make_unique<Broken>(*inner.compute);
                         return RankBackend{broken.get(), inner.transport};
                       }),
                 Error);
    EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(30));
  }
}

TEST(Emulation, IsHeldToItsCoresAndNobodyElse) {
  const int64_t usable = UsableCores();
  for (int64_t cores = 1; cores <= usable; ++cores) {
    {
      const OnCores held(cores);
      EXPECT_EQ(UsableCores(), cores);
      std::jthread([&] { EXPECT_EQ(UsableCores(), cores); });
    }
    EXPECT_EQ(UsableCores(), usable);
  }
}

}  // namespace
}  // namespace pipelag
