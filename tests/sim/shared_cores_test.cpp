// Ranks that share cores: textbook cases to the nanosecond, the plain run where there is a core for
// each, and work that is neither lost nor made.
#include "sim/shared_cores.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "models/random.h"
#include "models/schedule/generators.h"
#include "models/schedule/replicate.h"
#include "sim/simulator.h"

namespace pipelag {
namespace {

using ::testing::ElementsAre;

struct Piece {
  int64_t start = 0;
  int64_t takes = 0;
};

/// When each of them ends, each on a rank of its own.
std::vector<int64_t> Ends(int64_t cores, const std::vector<Piece>& all) {
  enum : unsigned { kStart, kEnd };
  EventQueue events;
  SharedCores shared(cores, events, kEnd);
  for (size_t i = 0; i < all.size(); ++i) {
    events.Push(all[i].start, kStart, static_cast<int32_t>(i));
  }
  std::vector<int64_t> ends(all.size(), -1);
  while (!events.empty()) {
    const QueuedEvent event = events.Pop();
    const auto rank = static_cast<size_t>(event.subject);
    if (event.kind() == kStart) {
      shared.Start(event.subject, all[rank].takes, event.time);
    } else if (shared.Stands(event)) {
      shared.End(event.time);
      ends[rank] = event.time;
    }
  }
  return ends;
}

TEST(SharedCores, AreSharedEvenly) {
  EXPECT_THAT(Ends(1, {{7, 100}}), ElementsAre(107));
  EXPECT_THAT(Ends(2, {{0, 100}, {0, 30}}), ElementsAre(100, 30));
  // Half a core each from 50 on, until the first one ends.
  EXPECT_THAT(Ends(1, {{0, 100}, {50, 100}}), ElementsAre(150, 200));
  // Two thirds of a core each.
  EXPECT_THAT(Ends(2, {{0, 90}, {0, 120}, {0, 120}}), ElementsAre(135, 165, 165));
  EXPECT_THAT(Ends(1, {{0, 10}, {0, 10}, {0, 11}}), ElementsAre(30, 30, 31));
}

TEST(SharedCores, EndsAreRoundedUp) {
  EXPECT_THAT(Ends(2, {{0, 11}, {0, 11}, {0, 11}}), ElementsAre(17, 17, 17));
  // Sevenths that come and go: less than a nanosecond is lost at each end.
  std::vector<Piece> seven(7, {0, 1000});
  EXPECT_EQ(Ends(1, seven), std::vector<int64_t>(7, 7000));
  for (size_t i = 0; i < seven.size(); ++i) seven[i].start = static_cast<int64_t>(i);
  EXPECT_GE(Ends(1, seven).back(), 7000);
  EXPECT_LT(Ends(1, seven).back(), 7007);
  // More at once than progress is exact for.
  EXPECT_EQ(Ends(1, std::vector<Piece>(97, {3, 1'000'003})),
            std::vector<int64_t>(97, 3 + 97 * 1'000'003));
}

struct Setting {
  std::string schedule;
  Program program;
  ActionTimes times;
};

enum class Messages { kFree, kTakeTime };

/// Every known schedule in a few sizes, with times of no pattern.
void ForEverySchedule(Messages messages, const std::function<void(const Setting&)>& check) {
  uint64_t key = 0;
  const auto draw = [&](uint64_t bound) {
    return static_cast<int64_t>(UniformBelow(RandomBits(5, ++key), bound));
  };
  for (const Generator& generator : Generators()) {
    int played = 0;
    for (const auto& [p, m] : {std::pair(2, 4), std::pair(4, 8), std::pair(8, 16)}) {
      std::optional<Program> program;
      try {
        program.emplace(
            Generate(std::string(generator.name), {.ranks = p, .microbatches = m, .norm = p == 4}),
            3);
      } catch (const Error&) {
        continue;  // not every schedule exists for every size, or has a norm
      }
      ++played;
      Costs costs;
      for (auto* of : {&costs.forward, &costs.backward, &costs.backward_input,
                       &costs.backward_weight, &costs.overlap, &costs.update}) {
        for (int s = 0; s < program->schedule().stages; ++s) {
          of->emplace_back(draw(7) == 0 ? 0 : draw(3000));
        }
      }
      if (messages == Messages::kTakeTime) {
        costs.activation_bytes = draw(400);
        costs.p2p_bandwidth = {1'000'000'000};
        costs.p2p_latency = Nanoseconds{draw(900)};
      }
      const std::vector<Nanoseconds> reduction{
          Nanoseconds{messages == Messages::kFree ? 0 : draw(2000)}};
      SCOPED_TRACE(testing::Message() << generator.name << ' ' << p << ' ' << m);
      check({std::string(generator.name), *program, ActionTimes(*program, costs, reduction)});
    }
    EXPECT_GT(played, 0) << generator.name;
  }
}

Simulation OnCores(const Setting& setting, int64_t cores) {
  return Simulate(setting.program, setting.times, {.spans = true, .cores = cores});
}

Nanoseconds WorkOf(const Simulation& simulation) {
  Nanoseconds sum{0};
  for (const RankMetrics& rank : simulation.metrics.ranks) sum += rank.totals.busy;
  return sum;
}

TEST(SharedCores, AsManyAsRanksChangeNothing) {
  ForEverySchedule(Messages::kTakeTime, [](const Setting& setting) {
    const int ranks = setting.program.schedule().ranks;
    for (const int slots : {0, 2}) {
      SimulationOptions options{.receive_slots = slots, .spans = true};
      std::optional<Simulation> expected;
      try {
        expected = Simulate(setting.program, setting.times, options);
      } catch (const Error&) {
        continue;  // too few slots
      }
      for (const bool plain : {true, false}) {
        options.cores = ranks + (plain ? 3 : 0);
        options.network.plain_if_unshared = plain;
        const Simulation shared = Simulate(setting.program, setting.times, options);
        EXPECT_EQ(shared.trace, expected->trace) << slots << plain;
        EXPECT_EQ(shared.metrics.makespan, expected->metrics.makespan) << slots << plain;
        EXPECT_EQ(shared.exact, plain);
        if (!plain) continue;
        EXPECT_EQ(shared.metrics.step_time, expected->metrics.step_time) << slots;
        EXPECT_EQ(shared.steady.critical_ranks, expected->steady.critical_ranks) << slots;
      }
    }
  });
}

// While messages are free some rank always has something to do.
TEST(SharedCores, OneIsNeverIdle) {
  ForEverySchedule(Messages::kFree, [](const Setting& setting) {
    const Simulation apart = OnCores(setting, 0);
    EXPECT_EQ(OnCores(setting, 1).metrics.makespan, WorkOf(apart));
    const NoiseOptions noise{.seed = 3, .rank_factors = {1.25}, .sigma = 0.3};
    const auto run = [&](int64_t cores) {
      return Simulate(setting.program, setting.times, {.cores = cores, .noise = noise});
    };
    EXPECT_EQ(run(1).metrics.makespan, WorkOf(run(0)));
  });
}

/// The compute actions of all ranks in the order of their lanes, pairs that overlap as one.
std::vector<Span> Computed(const Trace& trace) {
  std::vector<Span> actions;
  bool second_half = false;
  for (const Span& span : trace.spans) {
    if (!OnComputeLane(span.kind)) continue;
    if (!second_half) actions.push_back(span);
    second_half = span.overlapped && !second_half;
  }
  return actions;
}

/// Every action gets its time, and less than a nanosecond more, at the rate that is due to it.
void ExpectWorkDone(const Simulation& apart, const Simulation& shared, int64_t cores) {
  constexpr int64_t kUnits = 840;  // divisible by all numbers up to 8
  std::vector<std::pair<int64_t, int>> changes;
  const std::vector<Span> actions = Computed(shared.trace);
  for (const Span& action : actions) {
    if (action.start == action.end) continue;
    changes.emplace_back(action.start.count(), 1);
    changes.emplace_back(action.end.count(), -1);
  }
  std::sort(changes.begin(), changes.end());
  std::vector<std::pair<int64_t, int64_t>> done;  // instants, and progress until then
  int64_t progress = 0;
  int64_t running = 0;
  for (const auto& [now, change] : changes) {
    if (running > 0) {
      progress += (now - done.back().first) * kUnits * std::min(cores, running) / running;
    }
    running += change;
    done.emplace_back(now, progress);
  }
  const auto until = [&](Nanoseconds time) {
    return std::lower_bound(done.begin(), done.end(), std::pair(time.count(), int64_t{0}))->second;
  };
  const std::vector<Span> given = Computed(apart.trace);
  ASSERT_EQ(actions.size(), given.size());
  for (size_t i = 0; i < actions.size(); ++i) {
    ASSERT_EQ(SpanName(actions[i]), SpanName(given[i]));
    const int64_t takes = (given[i].end - given[i].start).count();
    if (takes == 0) {
      EXPECT_EQ(actions[i].start, actions[i].end) << SpanName(actions[i]);
      continue;
    }
    const int64_t got = until(actions[i].end) - until(actions[i].start);
    EXPECT_GE(got, takes * kUnits) << SpanName(actions[i]);
    EXPECT_LT(got, (takes + 1) * kUnits) << SpanName(actions[i]);
  }
}

TEST(SharedCores, NeitherLoseNorMakeWork) {
  for (const Messages messages : {Messages::kFree, Messages::kTakeTime}) {
    ForEverySchedule(messages, [](const Setting& setting) {
      const Simulation apart = OnCores(setting, 0);
      for (const int64_t cores : {1, 2, 3, 5}) {
        if (cores > setting.program.schedule().ranks) continue;
        const Simulation shared = OnCores(setting, cores);
        SCOPED_TRACE(cores);
        ExpectWorkDone(apart, shared, cores);
        EXPECT_GE(shared.metrics.makespan, apart.metrics.makespan);
        EXPECT_GE(shared.metrics.makespan * cores, WorkOf(apart));
      }
    });
  }
}

Costs Uniform(int stages, int64_t forward, int64_t backward) {
  Costs costs;
  costs.forward.assign(static_cast<size_t>(stages), Nanoseconds{forward});
  costs.backward.assign(static_cast<size_t>(stages), Nanoseconds{backward});
  costs.update.assign(static_cast<size_t>(stages), Nanoseconds{0});
  return costs;
}

// Two ranks, two micro-batches, one core. A message arrives while the other rank computes, which
// from then on has half a core.
TEST(SharedCores, OfTwoRanksByHand) {
  const Program program(Generate("gpipe", {.ranks = 2, .microbatches = 2}), 1);
  Costs costs = Uniform(2, 1000, 2000);
  costs.p2p_latency = Nanoseconds{500};
  const Simulation shared =
      Simulate(program, ActionTimes(program, costs), {.spans = true, .cores = 1});
  std::vector<std::tuple<std::string, int64_t, int64_t, int64_t>> spans;
  for (const Span& span : Computed(shared.trace)) {
    if (span.kind == ActionKind::kUpdate) continue;
    spans.emplace_back(SpanName(span), span.start.count(), span.end.count(), span.wait.count());
  }
  using Row = std::tuple<std::string, int64_t, int64_t, int64_t>;
  EXPECT_THAT(spans, ElementsAre(Row("0F0", 0, 1000, 0), Row("0F1", 1000, 2500, 0),
                                 Row("0B0", 6500, 10'000, 4000), Row("0B1", 10'000, 12'000, 0),
                                 Row("1F0", 1500, 3000, 1500), Row("1F1", 3000, 4000, 0),
                                 Row("1B0", 4000, 6000, 0), Row("1B1", 6000, 9500, 0)));
  EXPECT_EQ(shared.metrics.makespan, Nanoseconds{12'000});
  EXPECT_EQ(shared.metrics.ranks[0].totals.busy, Nanoseconds{8000});  // as long as they last
  EXPECT_FALSE(shared.exact);
  EXPECT_EQ(shared.metrics.step_time, (StepTime{12'000, 1}));
}

// Replicas share them, too: they are ranks like those of a schedule that has them all.
TEST(SharedCores, AreThoseOfAllReplicas) {
  for (const char* schedule : {"1f1b", "2bw", "zb-h1", "dualpipe"}) {
    SCOPED_TRACE(schedule);
    const GeneratorOptions sizes{.ranks = 2, .microbatches = 4, .reduction = true};
    const Program one(Generate(schedule, sizes), 3);
    const Program all(Replicate(one.schedule(), 3), 3);
    Costs costs = Uniform(one.schedule().stages, 1300, 2100);
    costs.backward_input = costs.forward;
    costs.backward_weight = costs.forward;
    costs.p2p_latency = Nanoseconds{70};
    for (const int64_t cores : {1, 2, 5}) {
      SimulationOptions options{.spans = true, .cores = cores};
      const Simulation expected =
          Simulate(all, ActionTimes(all, costs, {Nanoseconds{900}}), options);
      options.network.replicas = 3;
      const Simulation shared = Simulate(one, ActionTimes(one, costs, {Nanoseconds{900}}), options);
      EXPECT_EQ(shared.metrics.makespan, expected.metrics.makespan);
      EXPECT_EQ(shared.metrics.step_time, expected.metrics.step_time);
      const std::vector<Span> ours = Computed(shared.trace);
      const std::vector<Span> theirs = Computed(expected.trace);
      for (size_t i = 0; i < ours.size(); ++i) {
        EXPECT_EQ(ours[i].start, theirs[i].start) << SpanName(ours[i]);
        EXPECT_EQ(ours[i].end, theirs[i].end) << SpanName(ours[i]);
      }
    }
  }
}

}  // namespace
}  // namespace pipelag
