// The central test: every schedule on every number of ranks ends with the weights of the serial
// reference, to the last bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "models/schedule/generators.h"
#include "runtime/cpu/threads.h"
#include "runtime/data/grammar.h"
#include "runtime/serial.h"

namespace pipelag {
namespace {

constexpr int kMicrobatches = 4;
constexpr int64_t kSteps = 20;

const Corpus& TestCorpus() {
  static const Corpus corpus = GrammarCorpus(3, 8, 4000);
  return corpus;
}

TrainingOptions Options(const std::string& optimizer, int stages) {
  TrainingOptions options;
  options.shape = {.layers = 4, .hidden = 16, .heads = 2, .sequence = 8, .vocabulary = 256};
  options.split = SplitLayers(4, stages);
  options.microbatch_size = 2;
  options.seed = 11;
  options.optimizer.name = optimizer;
  options.optimizer.learning_rate = optimizer == "sgd" ? 0.1f : 0.01f;
  options.learning_rate = {
      .peak = options.optimizer.learning_rate, .warmup_updates = 3, .total_updates = kSteps};
  options.validation_microbatches = 2;
  options.deadline = std::chrono::seconds(20);
  return options;
}

Program Lower(const std::string& schedule, int ranks, int m = kMicrobatches, bool norm = false) {
  return Program(Generate(schedule, {.ranks = ranks, .microbatches = m, .norm = norm}), kSteps);
}

TrainingResult Threads(const std::string& schedule, int ranks, const std::string& optimizer,
                       int m = kMicrobatches) {
  return TrainOnThreads(Lower(schedule, ranks, m), Options(optimizer, ranks), TestCorpus());
}

std::string Serial(const std::vector<int>& delays, int stages, const std::string& optimizer,
                   int m = kMicrobatches) {
  return TrainSerially(PlanOfDelays(delays, stages, m, kSteps), Options(optimizer, stages),
                       TestCorpus())
      .weights_sha256;
}

class Identity : public testing::TestWithParam<std::string> {};

TEST_P(Identity, FlushSchedulesEqualTheSerialReferenceOnAnyNumberOfRanks) {
  const std::string reference = Serial({0}, 1, GetParam());
  EXPECT_NE(reference, Serial({1}, 1, GetParam()));
  for (int stages = 2; stages <= 4; ++stages) EXPECT_EQ(Serial({0}, stages, GetParam()), reference);
  for (const char* schedule : {"gpipe", "1f1b"}) {
    for (int ranks = 1; ranks <= 4; ++ranks) {
      EXPECT_EQ(Threads(schedule, ranks, GetParam()).weights_sha256, reference)
          << schedule << ranks;
    }
  }
}

TEST_P(Identity, DoubleBufferedEqualsDelayOneOnAnyNumberOfRanks) {
  const std::string reference = Serial({1}, 1, GetParam());
  for (int ranks = 1; ranks <= 4; ++ranks) {
    EXPECT_EQ(Threads("2bw", ranks, GetParam()).weights_sha256, reference) << ranks;
  }
}

TEST_P(Identity, PipeDreamEqualsDelaysPerStage) {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    std::vector<int> delays;
    for (int s = 0; s < ranks; ++s) delays.push_back(ranks - 1 - s);
    EXPECT_EQ(Threads("pipedream", ranks, GetParam(), 1).weights_sha256,
              Serial(delays, ranks, GetParam(), 1))
        << ranks;
  }
}

TEST_P(Identity, EverySchedulesPlanIsItsReference) {
  for (const char* schedule : {"gpipe", "1f1b", "pipedream", "2bw"}) {
    for (const int m : {2, 3, 5}) {
      const int ranks = 3;
      const std::string serial =
          TrainSerially(PlanOf(Lower(schedule, ranks, m)), Options(GetParam(), ranks), TestCorpus())
              .weights_sha256;
      EXPECT_EQ(Threads(schedule, ranks, GetParam(), m).weights_sha256, serial) << schedule << m;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, Identity, testing::Values("sgd", "adamw", "muon"),
                         [](const auto& parameter) { return parameter.param; });

TrainingOptions Corrected(const std::string& optimizer, const std::string& correction, int stages) {
  TrainingOptions options = Options(optimizer, stages);
  options.correction.name = correction;
  if (optimizer == "lion") options.learning_rate.peak = 0.002f;
  options.validation_microbatches = 1;
  return options;
}

class IdentityOfEvery : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Optimizer, IdentityOfEvery, testing::ValuesIn(OptimizerNames()));

TEST_P(IdentityOfEvery, CorrectionUnderDelay) {
  for (const std::string& correction : CorrectionNames()) {
    if (correction == "basis-rotation" && GetParam() != "adamw") continue;
    for (const char* schedule : {"2bw", "pipedream"}) {
      const int m = std::string(schedule) == "2bw" ? 3 : 1;
      const Program program = Lower(schedule, 3, m);
      const TrainingOptions options = Corrected(GetParam(), correction, 3);
      const TrainingResult serial = TrainSerially(PlanOf(program), options, TestCorpus());
      const TrainingResult threads = TrainOnThreads(program, options, TestCorpus());
      EXPECT_FALSE(serial.diverged) << correction << " " << schedule;
      EXPECT_EQ(threads.weights_sha256, serial.weights_sha256) << correction << " " << schedule;
      EXPECT_EQ(threads.validation_loss, serial.validation_loss) << correction;
    }
  }
}

TEST(IdentityWith, ErrorFeedbackOverManySteps) {
  constexpr int64_t kMany = 200;
  for (const char* optimizer : {"adamw", "muon"}) {
    TrainingOptions options = Corrected(optimizer, "error-feedback", 1);
    options.learning_rate = {.peak = 0.003f, .warmup_updates = 20, .total_updates = kMany};
    const std::string reference =
        TrainSerially(PlanOfDelays({1}, 1, kMicrobatches, kMany), options, TestCorpus())
            .weights_sha256;
    EXPECT_NE(reference, "");
    for (int ranks = 2; ranks <= 4; ++ranks) {
      options.split = SplitLayers(4, ranks);
      const Program program = Lower("2bw", ranks).WithSteps(kMany);
      EXPECT_EQ(TrainOnThreads(program, options, TestCorpus()).weights_sha256, reference)
          << optimizer << ranks;
    }
  }
}

TEST(IdentityWith, CorrectionsThatAreOff) {
  const std::string synchronous = Serial({0}, 2, "muon");
  const std::string delayed = Serial({1}, 2, "muon");
  for (const std::string& correction : CorrectionNames()) {
    if (correction == "basis-rotation") continue;
    TrainingOptions options = Options("muon", 2);
    options.correction.name = correction;
    EXPECT_EQ(TrainOnThreads(Lower("1f1b", 2), options, TestCorpus()).weights_sha256, synchronous);
  }
  TrainingOptions options = Options("muon", 2);
  options.correction.name = "error-feedback";
  EXPECT_NE(TrainOnThreads(Lower("2bw", 2), options, TestCorpus()).weights_sha256, delayed);
  options.correction.strength = 0.0f;
  EXPECT_EQ(TrainOnThreads(Lower("2bw", 2), options, TestCorpus()).weights_sha256, delayed);
}

TEST(IdentityWith, StashedWeightsOrASentenceThatTheyAreGone) {
  TrainingOptions options = Corrected("adamw", "dc-asgd", 3);
  // Updates that wait for the norm come after the last stage has read its older version for the
  // last time: it is there all the same.
  options.clip_norm = 0.5;
  const Program late = Lower("2bw", 3, 3, true);
  EXPECT_EQ(TrainOnThreads(late, options, TestCorpus()).weights_sha256,
            TrainSerially(PlanOf(late), options, TestCorpus()).weights_sha256);
  // PipeDream's older version is overwritten by an update that comes after its last reader.
  options.clip_norm.reset();
  Schedule schedule = Generate("pipedream", {.ranks = 3, .microbatches = 3});
  const auto reason = [&] {
    const Program program(schedule, kSteps);
    const auto of = [&](const auto& train) {
      try {
        train();
      } catch (const Error& error) {
        return std::string(error.what());
      }
      return std::string();
    };
    const std::string of_threads = of([&] { TrainOnThreads(program, options, TestCorpus()); });
    EXPECT_EQ(of([&] { TrainSerially(PlanOf(program), options, TestCorpus()); }), of_threads);
    return of_threads;
  };
  EXPECT_EQ(reason(), "");
  std::vector<Action>& body = schedule.body[0];
  const auto update = std::find_if(body.begin(), body.end(), [](const Action& action) {
    return action.kind == ActionKind::kUpdate;
  });
  update->microbatch = -1;  // a batch later
  EXPECT_EQ(reason(),
            "pipedream: dc-asgd (--correction) needs the weights that a gradient was taken at, but "
            "stage 0 has overwritten them before it applies it");
  options.correction.strength = 0.0f;
  EXPECT_EQ(reason(), "");
}

TEST(Serial, StartsSynchronouslyWhereTold) {
  const TrainingOptions options = Corrected("adamw", "error-feedback", 2);
  const auto run = [&](int64_t synchronous, int delay) {
    SerialPlan plan = PlanOfDelays({delay}, 2, kMicrobatches, kSteps);
    plan.synchronous_steps = synchronous;
    return TrainSerially(plan, options, TestCorpus());
  };
  const TrainingResult synchronous = run(0, 0);
  EXPECT_EQ(run(kSteps, 1).weights_sha256, synchronous.weights_sha256);
  const TrainingResult mixed = run(5, 1);
  for (size_t step = 0; step < 6; ++step) {
    EXPECT_EQ(mixed.step_losses[step], synchronous.step_losses[step]) << step;
  }
  EXPECT_NE(mixed.step_losses[6], synchronous.step_losses[6]);
  // Batches 5 and 6 are both differentiated at version 5, as 0 and 1 are at version 0.
  for (const Span& span : mixed.trace.spans) {
    if (span.kind != ActionKind::kForward) continue;
    const int64_t step = span.microbatch / kMicrobatches;
    EXPECT_EQ(span.weight_version, step < 5 ? step : std::max<int64_t>(5, step - 1));
  }
}

TEST(Divergence, EndsARunEarlyAndLeavesNoNumbers) {
  for (const char* schedule : {"1f1b", "2bw"}) {
    TrainingOptions options = Options("sgd", 3);
    options.learning_rate.peak = 1e4f;
    const Program program = Lower(schedule, 3).WithSteps(60);
    const TrainingResult serial = TrainSerially(PlanOf(program), options, TestCorpus());
    const TrainingResult threads = TrainOnThreads(program, options, TestCorpus());
    for (const TrainingResult* result : {&serial, &threads}) {
      ASSERT_TRUE(result->diverged);
      EXPECT_LE(*result->diverged, 25);
      EXPECT_EQ(result->step_losses.size(), static_cast<size_t>(*result->diverged));
      EXPECT_TRUE(std::isnan(result->final_loss()));
      EXPECT_TRUE(std::isnan(result->validation_loss));
      EXPECT_EQ(result->weights_sha256, "");
    }
    EXPECT_EQ(threads.diverged, serial.diverged);
  }
}

/// What a run was before it was interrupted.
class AfterSteps : public StartingPoint {
 public:
  AfterSteps(int64_t step, std::vector<double> losses) : step_(step), losses_(std::move(losses)) {}
  int64_t step() const override { return step_; }
  std::vector<double> LatestLosses() const override { return losses_; }
  void ReadVersion(const StageLayout&, int64_t, float*) const override {}
  void ReadState(Optimizer&) const override {}

 private:
  int64_t step_;
  std::vector<double> losses_;
};

TEST(Divergence, OfARunThatGoesOnIsThatOfTheWholeRun) {
  // The mean of five is above what knowing nothing costs at batch 30.
  std::vector<double> losses(40, 3);
  std::fill(losses.begin() + 28, losses.end(), 10);
  TrainingOptions options;
  const auto tokens = static_cast<double>(TokensPerStep(options, 1));
  for (int64_t begin = 0; begin <= 30; ++begin) {
    const auto from = losses.begin() + begin;
    options.start = std::make_shared<AfterSteps>(
        begin, std::vector<double>(from - std::min<int64_t>(begin, kLossWindow - 1), from));
    StepWatch watch(options, 1);
    int64_t stopped = -1;
    try {
      for (int64_t i = 0; begin + i < 40; ++i) {
        watch.AddLoss(i, losses[static_cast<size_t>(begin + i)] * tokens);
      }
    } catch (const Diverged& diverged) {
      stopped = begin + diverged.step;
    }
    EXPECT_EQ(stopped, 30) << begin;
  }
}

TEST(Divergence, IsLosingMoreThanByKnowingNothing) {
  const auto has_diverged = [](const std::vector<double>& losses) {
    return HasDiverged(NetworkShape(), static_cast<int64_t>(losses.size()), losses);
  };
  const double above = std::log(256.0) + 1.01;
  const double below = std::log(256.0) + 0.99;
  std::vector<double> losses(20, above);
  EXPECT_FALSE(has_diverged(losses));  // the first steps may do anything
  losses.insert(losses.end(), 4, above);
  EXPECT_FALSE(has_diverged(losses));
  losses.push_back(above);
  EXPECT_TRUE(has_diverged(losses));
  losses.assign(40, below);
  EXPECT_FALSE(has_diverged(losses));
  losses.assign(40, 3);
  losses.push_back(9);  // a spike
  EXPECT_FALSE(has_diverged(losses));
  for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_TRUE(has_diverged({bad}));
  }
}

TEST(IdentityWith, ClippingByTheGlobalNorm) {
  std::string reference;
  for (int ranks = 1; ranks <= 4; ++ranks) {
    TrainingOptions options = Options("adamw", ranks);
    options.clip_norm = 0.5;
    const std::string serial =
        TrainSerially(PlanOfDelays({0}, ranks, kMicrobatches, kSteps), options, TestCorpus())
            .weights_sha256;
    if (reference.empty()) reference = serial;
    EXPECT_EQ(serial, reference);
    EXPECT_NE(serial, Serial({0}, ranks, "adamw"));
    for (const char* schedule : {"gpipe", "1f1b"}) {
      const Program program = Lower(schedule, ranks, kMicrobatches, true);
      EXPECT_EQ(TrainOnThreads(program, options, TestCorpus()).weights_sha256, reference)
          << schedule << ranks;
    }
    // Late updates: two accumulators, and the norm waits for nobody's pipeline.
    EXPECT_EQ(TrainOnThreads(Lower("2bw", ranks, kMicrobatches, true), options, TestCorpus())
                  .weights_sha256,
              TrainSerially(PlanOfDelays({1}, ranks, kMicrobatches, kSteps), options, TestCorpus())
                  .weights_sha256)
        << ranks;
  }
}

TEST(IdentityWith, UnevenStages) {
  const std::string reference = Serial({1}, 1, "muon");
  for (const auto& counts : {std::vector<int>{3, 1}, {1, 3}, {1, 1, 2}}) {
    const auto ranks = static_cast<int>(counts.size());
    TrainingOptions options = Options("muon", ranks);
    options.split = SplitLayers(4, counts);
    EXPECT_EQ(TrainOnThreads(Lower("2bw", ranks), options, TestCorpus()).weights_sha256, reference);
  }
}

TEST(IdentityWith, RunsShorterThanThePipeline) {
  for (const char* schedule : {"gpipe", "1f1b", "pipedream"}) {
    for (int64_t steps = 1; steps <= 3; ++steps) {
      const Program program(Generate(schedule, {.ranks = 4, .microbatches = 1}), steps);
      const TrainingOptions options = Options("adamw", 4);
      EXPECT_EQ(TrainOnThreads(program, options, TestCorpus()).weights_sha256,
                TrainSerially(PlanOf(program), options, TestCorpus()).weights_sha256)
          << schedule << steps;
    }
  }
}

TEST(Measured, PeaksAreTheProgramsOwn) {
  for (const char* schedule : {"gpipe", "1f1b", "pipedream", "2bw"}) {
    for (const int m : {3, 4, 7}) {
      const Program program = Lower(schedule, 4, m);
      const TrainingResult result = TrainOnThreads(program, Options("sgd", 4), TestCorpus());
      for (int s = 0; s < 4; ++s) {
        EXPECT_EQ(result.peak_activations[static_cast<size_t>(s)], program.PeakInFlight(s));
        EXPECT_EQ(result.peak_versions[static_cast<size_t>(s)], program.versions(s).weight_versions)
            << schedule << m << s;
      }
    }
  }
}

TEST(Measured, TraceTellsVersionsAndEveryAction) {
  const Program program = Lower("2bw", 3);
  const Trace trace = TrainOnThreads(program, Options("sgd", 3), TestCorpus()).trace;
  int64_t computes = 0;
  int64_t transfers = 0;
  for (const Span& span : trace.spans) {
    EXPECT_GE(span.start.count(), 0);
    EXPECT_LE(span.start, span.end);
    if (OnComputeLane(span.kind)) ++computes;
    if (IsSend(span.kind) || IsReceive(span.kind)) ++transfers;
    if (span.kind == ActionKind::kForward || span.kind == ActionKind::kBackward) {
      EXPECT_EQ(span.weight_version, std::max<int64_t>(0, span.microbatch / kMicrobatches - 1));
    }
  }
  EXPECT_EQ(computes, 3 * kSteps * (2 * kMicrobatches + 1));
  EXPECT_EQ(transfers, 2 * 4 * kSteps * kMicrobatches / 1);
}

TEST(Measured, TraceOfTheFirstStepsChangesNothingElse) {
  const Program program = Lower("2bw", 3);
  TrainingOptions options = Options("adamw", 3);
  const auto spans = [](const Trace& trace) {
    std::set<std::string> names;
    for (const Span& span : trace.spans) names.insert(SpanName(span));
    return names;
  };
  const TrainingResult whole = TrainOnThreads(program, options, TestCorpus());
  const TrainingResult serial = TrainSerially(PlanOf(program), options, TestCorpus());
  options.traced_steps = 3;
  const TrainingResult few = TrainOnThreads(program, options, TestCorpus());
  const TrainingResult few_serial = TrainSerially(PlanOf(program), options, TestCorpus());
  for (const TrainingResult* result : {&few, &few_serial}) {
    EXPECT_EQ(result->trace.steps, 3);
    EXPECT_EQ(result->weights_sha256, whole.weights_sha256);
    EXPECT_EQ(result->step_losses, whole.step_losses);
    EXPECT_EQ(result->validation_loss, whole.validation_loss);
  }
  // Just those of the whole trace.
  for (const auto& [all, kept] : {std::pair(&whole, &few), std::pair(&serial, &few_serial)}) {
    Trace cut = all->trace;
    std::erase_if(cut.spans, [&](const Span& span) { return StepOf(span, cut) >= 3; });
    EXPECT_EQ(spans(cut), spans(kept->trace));
  }
}

TEST(Measured, WaitsAreForMessagesAndLieBetweenActions) {
  for (const int ranks : {1, 3}) {
    const Program program = Lower("1f1b", ranks);
    const Trace trace = TrainOnThreads(program, Options("sgd", ranks), TestCorpus()).trace;
    std::map<int, Nanoseconds> free;
    for (const Span& span : trace.spans) {
      if (!OnComputeLane(span.kind)) {
        EXPECT_EQ(span.wait.count(), 0) << SpanName(span);  // moving is no waiting
        continue;
      }
      const bool takes = (span.kind == ActionKind::kForward && span.rank > 0) ||
                         (span.kind == ActionKind::kBackward && span.rank < ranks - 1);
      EXPECT_GE(span.wait.count(), 0) << SpanName(span);
      EXPECT_TRUE(takes || span.wait.count() == 0) << SpanName(span);
      if (const auto before = free.find(span.rank); before != free.end()) {
        EXPECT_LE(span.wait, span.start - before->second) << SpanName(span);
      } else {
        EXPECT_EQ(span.wait.count() > 0, takes) << SpanName(span);
      }
      free[span.rank] = span.end;
    }
    EXPECT_EQ(free.size(), static_cast<size_t>(ranks));
  }
}

TEST(Loss, FallsTowardsTheEntropyOfTheText) {
  TrainingOptions options = Options("adamw", 2);
  const Corpus corpus = GrammarCorpus(3, options.shape.sequence, 20000);
  const Program program(Generate("2bw", {.ranks = 2, .microbatches = 4}), 60);
  options.learning_rate.total_updates = 60;
  const TrainingResult result = TrainOnThreads(program, options, corpus);
  EXPECT_NEAR(result.step_losses.front(), std::log(256.0), 0.1);
  EXPECT_LT(result.validation_loss, 3.5);
  EXPECT_GT(result.validation_loss, *corpus.entropy_rate);
}

}  // namespace
}  // namespace pipelag
