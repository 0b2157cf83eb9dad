// Data-parallel copies of a pipeline: whatever the schedule, wherever the ranks run, they end with
// the weights of the serial reference, which adds the replicas' gradients by hand.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <optional>
#include <set>

#include "models/schedule/generators.h"
#include "models/schedule/replicate.h"
#include "models/schedule/slots.h"
#include "runtime/cpu/threads.h"
#include "runtime/data/grammar.h"
#include "runtime/rank_plan.h"
#include "runtime/runnable.h"
#include "runtime/serial.h"
#include "runtime/summation.h"
#include "tests/runtime/agreed.h"
#include "tests/runtime/every_schedule.h"
#include "tests/runtime/power_cut.h"

namespace pipelag {
namespace {

using testing::HasSubstr;

constexpr int64_t kSteps = 4;

const Corpus& TestCorpus() {
  static const Corpus corpus = GrammarCorpus(3, 4, 4000);
  return corpus;
}

TrainingOptions Options(const std::string& optimizer, int stages) {
  TrainingOptions options;
  options.shape = {.layers = 7, .hidden = 8, .heads = 1, .sequence = 4, .vocabulary = 256};
  options.split = SplitLayers(options.shape.layers, stages);
  options.microbatch_size = 1;
  options.seed = 7;
  options.optimizer.name = optimizer;
  options.optimizer.learning_rate = optimizer == "sgd" ? 0.1f : 0.01f;
  options.learning_rate = {.peak = options.optimizer.learning_rate, .total_updates = kSteps};
  options.validation_microbatches = 1;
  options.deadline = std::chrono::seconds(60);
  options.poison_freed = true;
  return options;
}

Program Replicated(const std::string& schedule, GeneratorOptions sizes, int replicas,
                   int64_t steps = kSteps) {
  sizes.reduction = true;
  return Program(Replicate(Generate(schedule, sizes), replicas), steps);
}

TrainingResult Agreed(const Program& program, const TrainingOptions& options) {
  return Agreed(program, options, TestCorpus());
}

class Replicas : public testing::TestWithParam<std::string> {};

TEST_P(Replicas, EndWithTheWeightsOfTheSerialReference) {
  const std::string& schedule = GetParam();
  const std::vector<std::string> optimizers = {"sgd", "adamw", "muon"};
  // Pairwise: each optimizer meets each number of ranks and each number of replicas.
  for (int ranks = 1; ranks <= 3; ++ranks) {
    if (schedule == "dualpipe" && ranks % 2 != 0) continue;
    if (kSanitized && ranks != 2) continue;  // instrumented threads are slow
    for (const int replicas : {2, 3}) {
      const std::string& optimizer =
          optimizers[static_cast<size_t>(ranks + replicas) % optimizers.size()];
      SCOPED_TRACE(fmt::format("{} ranks, {} replicas, {}", ranks, replicas, optimizer));
      const Program program = Replicated(schedule, {.ranks = ranks, .microbatches = 6}, replicas);
      Agreed(program, Options(optimizer, program.schedule().stages));
    }
  }
}

TEST_P(Replicas, SeeTheDataOfOneLargeBatch) {
  const std::string& schedule = GetParam();
  if (schedule == "pipedream" || schedule == "paci") return;  // delays depend on the batch
  const Program shared = Replicated(schedule, {.ranks = 2, .microbatches = 4}, 2);
  const Program alone(Generate(schedule, {.ranks = 2, .microbatches = 8}), kSteps);
  const TrainingOptions options = Options("sgd", shared.schedule().stages);
  const TrainingResult by_two = TrainOnThreads(shared, options, TestCorpus());
  const TrainingResult by_one = TrainOnThreads(alone, options, TestCorpus());
  EXPECT_EQ(by_two.step_losses[0], by_one.step_losses[0]);
  for (size_t step = 1; step < by_one.step_losses.size(); ++step) {
    EXPECT_NEAR(by_two.step_losses[step], by_one.step_losses[step], 1e-5);
  }
  EXPECT_NEAR(by_two.validation_loss, by_one.validation_loss, 1e-5);
}

/// Each replica exchanges the embedding's gradients after those of all replicas have met.
TEST_P(Replicas, TieTheirEmbeddingAndClipItsNormOnce) {
  const std::string& schedule = GetParam();
  if (schedule == "pipedream" || schedule == "paci") return;  // cannot wait for either
  for (const bool norm : {false, true}) {
    const Program program = Replicated(
        schedule, {.ranks = 2, .microbatches = 4, .norm = norm, .tied = true}, norm ? 2 : 3);
    TrainingOptions options = Options("adamw", program.schedule().stages);
    options.shape.tied = true;
    if (norm) options.clip_norm = 0.3;
    Agreed(program, options);
  }
}

TEST_P(Replicas, ClipTheirCommonNormOrAreRefused) {
  const std::string& schedule = GetParam();
  std::optional<Program> program;
  try {
    program.emplace(Replicated(schedule, {.ranks = 2, .microbatches = 4, .norm = true}, 2));
  } catch (const Error& error) {
    EXPECT_TRUE(schedule == "pipedream" || schedule == "paci") << error.what();
    EXPECT_THAT(error.what(), HasSubstr("norm"));
    return;
  }
  TrainingOptions options = Options("adamw", program->schedule().stages);
  std::vector<double> norms;
  options.clip_norm = 0.3;
  options.on_step = [&](const StepReport& report) { norms.push_back(*report.gradient_norm); };
  const TrainingResult serial = TrainSerially(PlanOf(*program), options, TestCorpus());
  const std::vector<double> by_hand = std::exchange(norms, {});
  ExpectSame(TrainOnThreads(*program, options, TestCorpus()), serial);
  EXPECT_EQ(std::exchange(norms, {}), by_hand);
  ExpectSame(TrainOnSocketPairs(*program, options, TestCorpus()), serial);
  EXPECT_EQ(std::exchange(norms, {}), by_hand);
  // The gradient of all, counted once: that of one pipeline with the whole batch, but for rounding.
  const Program alone(Generate(schedule, {.ranks = 2, .microbatches = 8, .norm = true}), kSteps);
  TrainSerially(PlanOf(alone), options, TestCorpus());
  EXPECT_NEAR(norms[0], by_hand[0], 1e-5 * by_hand[0]);
  options.on_step = {};
  options.clip_norm = 1e9;
  EXPECT_NE(TrainOnThreads(*program, options, TestCorpus()).weights_sha256, serial.weights_sha256);
}

INSTANTIATE_TEST_SUITE_P(Schedules, Replicas, testing::ValuesIn(EverySchedule()),
                         [](const auto& parameter) { return CaseName(parameter.param); });

// Delays and order by hand know nothing of schedules.
TEST(ReplicasOf, SynchronousSchedulesAddInReplicaOrder) {
  for (const int replicas : {2, 3}) {
    TrainingOptions options = Options("muon", 1);
    const TrainingResult by_hand =
        TrainSerially(PlanOfDelays({0}, 1, 4, kSteps, replicas), options, TestCorpus());
    EXPECT_NE(by_hand.weights_sha256,
              TrainSerially(PlanOfDelays({0}, 1, 4 * replicas, kSteps), options, TestCorpus())
                  .weights_sha256);
    for (const char* schedule : {"gpipe", "1f1b", "interleaved-1f1b"}) {
      for (const int ranks : {1, 2}) {
        const Program program = Replicated(schedule, {.ranks = ranks, .microbatches = 4}, replicas);
        ExpectSame(
            TrainOnThreads(program, Options("muon", program.schedule().stages), TestCorpus()),
            by_hand);
      }
    }
  }
}

TEST(ReplicasOf, VariantsOfSchedules) {
  struct Variant {
    std::string schedule;
    GeneratorOptions options;
    std::string correction = "none";
  };
  const std::vector<Variant> variants = {
      {"2bw", {.ranks = 3, .microbatches = 6, .late_update = true}},
      {"2bw", {.ranks = 3, .microbatches = 6, .late_update = false}, "error-feedback"},
      {"2bw", {.ranks = 2, .microbatches = 6, .norm = true, .late_update = true, .body = "zb-h1"}},
      {"2bw", {.ranks = 2, .microbatches = 6, .norm = true, .late_update = false}},
      {"2bw", {.ranks = 2, .microbatches = 4, .chunks = 2}},
      {"2bw", {.ranks = 1, .microbatches = 2, .norm = true}},
      {"pipedream", {.ranks = 3, .microbatches = 1}, "error-feedback"},
      {"pipedream", {.ranks = 2, .microbatches = 2, .vertical_sync = true}},
      {"paci", {.ranks = 3, .microbatches = 2, .body = "zb-h1"}},
      {"1f1b", {.ranks = 2, .microbatches = 4, .norm = true, .barrier = true}},
      {"interleaved-1f1b", {.ranks = 2, .microbatches = 4, .norm = true, .chunks = 3}},
      {"dualpipe", {.ranks = 2, .microbatches = 4, .norm = true, .barrier = true}},
  };
  for (const Variant& variant : variants) {
    if (kSanitized && variant.options.ranks > 2) continue;  // instrumented threads are slow
    SCOPED_TRACE(fmt::format("{}, {} ranks, {}", variant.schedule, variant.options.ranks,
                             variant.options.body));
    const Program program = Replicated(variant.schedule, variant.options, 2, 2 * kSteps);
    TrainingOptions options = Options("adamw", program.schedule().stages);
    options.correction.name = variant.correction;
    if (variant.options.norm) options.clip_norm = 0.3;
    Agreed(program, options);
  }
}

TEST(ReplicasOf, UnevenStages) {
  const Program program = Replicated("1f1b", {.ranks = 3, .microbatches = 3}, 2);
  TrainingOptions options = Options("adamw", 3);
  options.split = SplitLayers(7, {4, 1, 2});
  const TrainingResult uneven = Agreed(program, options);
  options.split = SplitLayers(7, 3);
  EXPECT_EQ(Agreed(program, options).weights_sha256, uneven.weights_sha256);
}

// A second accumulator, late updates and reductions that are not hidden behind anything.
TEST(ReplicasOf, OneReductionAfterAnotherMayBeUnderWay) {
  const Program program = Replicated("2bw", {.ranks = 1, .microbatches = 1}, 3, 24);
  Agreed(program, Options("sgd", 1));
}

TEST(ReplicasOf, ReportsCoverTheWholeBatchInStepOrder) {
  const Program program = Replicated("1f1b", {.ranks = 2, .microbatches = 3}, 3, 8);
  TrainingOptions options = Options("sgd", 2);
  std::vector<StepReport> reports;
  options.on_step = [&](const StepReport& report) { reports.push_back(report); };
  for (const bool processes : {false, true}) {
    reports.clear();
    const TrainingResult run = processes ? TrainOnSocketPairs(program, options, TestCorpus())
                                         : TrainOnThreads(program, options, TestCorpus());
    ASSERT_EQ(reports.size(), 8u);
    for (size_t step = 0; step < reports.size(); ++step) {
      EXPECT_EQ(reports[step].steps_done, static_cast<int64_t>(step) + 1);
      EXPECT_EQ(reports[step].loss, run.step_losses[step]);
    }
    EXPECT_EQ(run.trace.tokens_per_step, 3 * 3 * 4);
    EXPECT_EQ(run.trace.ranks, 6);
    std::set<int> seen;
    for (const Span& span : run.trace.spans) seen.insert(span.rank);
    EXPECT_EQ(seen.size(), 6u);
  }
}

TEST(ReplicasOf, DivergenceOfAnyEndsAllOnThreadsAndProcesses) {
  const Program program = Replicated("1f1b", {.ranks = 2, .microbatches = 2}, 2, 60);
  TrainingOptions options = Options("sgd", 2);
  options.learning_rate = {.peak = 1e9f, .total_updates = 60};
  options.optimizer.learning_rate = 1e9f;
  const TrainingResult threads = TrainOnThreads(program, options, TestCorpus());
  ASSERT_TRUE(threads.diverged);
  const TrainingResult processes = TrainOnSocketPairs(program, options, TestCorpus());
  EXPECT_EQ(processes.diverged, threads.diverged);
  EXPECT_EQ(TrainSerially(PlanOf(program), options, TestCorpus()).diverged, threads.diverged);
}

TEST(ReplicasOf, AFailureOfOneEndsAllAndIsNamedWithItsReplica) {
  const Program program = Replicated("1f1b", {.ranks = 2, .microbatches = 2}, 2, 3);
  const TrainingOptions options = Options("sgd", 2);
  for (const int at : {0, 5, 9}) {
    std::unique_ptr<PowerCut> compute;
    const Interposer interpose = [&](int rank, RankBackend inner, RunControl&) {
      if (rank != 3) return inner;
      compute =
          std::make_unique<PowerCut>(*inner.compute, at, [] { throw Error("the power went off"); });
      return RankBackend{compute.get(), inner.transport};
    };
    try {
      TrainOnThreads(program, options, TestCorpus(), interpose);
      FAIL();
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("rank 3 (replica 1) at 1"));
    }
    const SocketPairsRun run = RunOnSocketPairs(program, options, TestCorpus(), interpose);
    for (const std::exception_ptr& error : run.errors) {
      EXPECT_THAT(TextOf(error), HasSubstr("rank 3 (replica 1)"));
    }
  }
}

TEST(ReplicasOf, OneThatIsGoneIsNamedWithItsReplica) {
  const Program program = Replicated("gpipe", {.ranks = 1, .microbatches = 2}, 3, 4);
  const std::vector<std::string> errors =
      ErrorsBesideOneGone(program, Options("sgd", 1), TestCorpus(), 2, 7);
  for (const int rank : {0, 1}) {
    EXPECT_THAT(errors[static_cast<size_t>(rank)],
                HasSubstr("rank 2 (replica 2) is gone: its connection was closed"));
  }
}

TEST(ReplicasOf, AreAsManyProcessesAsRanksOfAll) {
  const Program program = Replicated("gpipe", {.ranks = 2, .microbatches = 4}, 2, 1);
  std::vector<std::unique_ptr<Wire>> wires = SocketPairs(2);
  try {
    TrainOnProcesses(program, Options("sgd", 2), TestCorpus(), *wires[0]);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("there are 2 processes, but gpipe has 2 replicas of 2 ranks"));
  }
}

TEST(Summation, AddsWhatBelongsTogetherFirst) {
  // With 24 bits of mantissa the order shows.
  const auto sums = [](size_t together, size_t length) {
    std::vector<std::vector<float>> values;
    for (const float value : {1e8f, 3.0f, -1e8f, 3.0f}) values.emplace_back(length, value);
    std::vector<std::span<float>> summands(values.begin(), values.end());
    AddUp(summands, together);
    for (const auto& of_one : values) EXPECT_EQ(of_one, values[0]);
    return values[0];
  };
  const float in_order = ((1e8f + 3.0f) + -1e8f) + 3.0f;
  const float by_two = (1e8f + 3.0f) + (-1e8f + 3.0f);
  ASSERT_NE(in_order, by_two);
  for (const size_t length : {0u, 1u, 5000u}) {
    EXPECT_EQ(sums(1, length), std::vector<float>(length, in_order));
    EXPECT_EQ(sums(2, length), std::vector<float>(length, by_two));
    EXPECT_EQ(sums(4, length), std::vector<float>(length, in_order));
  }
}

/// GradientSum insists on exactly this room in every run over sockets.
TEST(ReplicatedPlan, HasRoomForWhatOthersAdd) {
  constexpr size_t kLength = 1001;
  for (const char* schedule : {"1f1b", "zb-v", "dualpipe"}) {
    for (const int replicas : {2, 3}) {
      const Program program = Replicated(
          schedule, {.ranks = 2, .microbatches = 4, .norm = true, .tied = true}, replicas);
      const Schedule& all = program.schedule();
      std::vector<size_t> received(all.groups.size());
      const std::vector<int> slots = NeverDelayingSlots(program);
      for (int rank = 0; rank < all.ranks; ++rank) {
        for (const ReductionPlan& reduction : PlanRank(program, rank, slots).reductions) {
          EXPECT_EQ(all.placement[static_cast<size_t>(reduction.stage)], rank);
          received[static_cast<size_t>(reduction.group)] += reduction.ReceivedElements(kLength);
        }
      }
      for (size_t g = 0; g < all.groups.size(); ++g) {
        // Every summand goes to whoever adds its parts, but to its own rank.
        size_t expected = 0;
        const std::vector<int> ranks = RanksOf(all, all.groups[g]);
        for (const int stage : all.groups[g].stages) {
          const int home = all.placement[static_cast<size_t>(stage)];
          const auto member = std::find(ranks.begin(), ranks.end(), home) - ranks.begin();
          expected += kLength - PartOf(kLength, static_cast<size_t>(member), ranks.size()).length;
        }
        if (!AddsGradients(all.groups[g])) expected = 0;
        EXPECT_EQ(received[g], expected) << schedule << replicas << ' ' << g;
      }
    }
  }
}

/// Wherever an AR, of whatever purpose, is moved to in its lane, the run ends with the same
/// weights, or is refused because something that it needs comes behind it.
TEST(ReplicatedOrders, HaveReductionsBehindTheirGradientsOrAreRefused) {
  int refused = 0;
  int ran = 0;
  for (const char* name : {"1f1b", "2bw", "zb-v", "dualpipe"}) {
    const Program original =
        Replicated(name, {.ranks = 2, .microbatches = 4, .norm = true, .tied = true}, 2);
    const Schedule& schedule = original.schedule();
    TrainingOptions options = Options("adamw", schedule.stages);
    options.clip_norm = 0.3;
    options.shape.tied = true;
    const std::string weights =
        TrainSerially(PlanOf(original), options, TestCorpus()).weights_sha256;
    for (const size_t rank : {size_t{0}, size_t{1}}) {
      const std::vector<Action>& body = schedule.body[rank];
      for (size_t from = 0; from < body.size(); ++from) {
        for (size_t to = 0; to < body.size() && body[from].kind == ActionKind::kAllReduce; ++to) {
          Schedule moved = schedule;
          for (const size_t replica : {rank, rank + 2}) {
            auto& lane = moved.body[replica];
            const Action action = lane[from];
            lane.erase(lane.begin() + static_cast<std::ptrdiff_t>(from));
            lane.insert(lane.begin() + static_cast<std::ptrdiff_t>(to), action);
          }
          std::optional<Program> program;
          try {
            program.emplace(moved, kSteps);
            PlanOf(*program);
          } catch (const ScheduleError& error) {
            EXPECT_THAT(std::string(error.what()),
                        testing::AnyOf(HasSubstr("whose gradient it needs"), HasSubstr("added"),
                                       HasSubstr("deadlock"), HasSubstr("overlaps nothing")));
            ++refused;
            continue;
          }
          ++ran;
          EXPECT_EQ(TrainOnThreads(*program, options, TestCorpus()).weights_sha256, weights)
              << name << ": rank " << rank << ", " << from << " to " << to;
        }
      }
    }
  }
  EXPECT_GT(refused, 100);
  EXPECT_GT(ran, 5);
}

}  // namespace
}  // namespace pipelag
