// The central test over everything that is registered: every schedule on every number of ranks ends
// with the weights of its serial reference, whatever updates them and however messages move.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <optional>

#include "models/schedule/generators.h"
#include "models/schedule/slots.h"
#include "models/schedule/text.h"
#include "runtime/cpu/threads.h"
#include "runtime/data/grammar.h"
#include "runtime/serial.h"
#include "tests/runtime/every_schedule.h"
#include "tests/runtime/socket_pairs.h"
#include "tests/runtime/synchronous_transport.h"

namespace pipelag {
namespace {

constexpr int kMostRanks = 4;
constexpr int kMicrobatches = 12;  // shared evenly by 1 to 4 ranks, and enough for two directions
constexpr int64_t kSteps = 4;

const Corpus& TestCorpus() {
  static const Corpus corpus = GrammarCorpus(3, 4, 4000);
  return corpus;
}

struct Updating {
  std::string optimizer;
  std::string correction;
};

std::vector<Updating> Updatings() {
  // Instrumented threads are slow, and what updates the weights is none of their business.
  if (kSanitized) return {{"sgd", "none"}, {"muon", "error-feedback"}};
  std::vector<Updating> all;
  for (const char* optimizer : {"sgd", "adamw", "muon"}) {
    for (const char* correction : {"none", "error-feedback"})
      all.push_back({optimizer, correction});
  }
  return all;
}

/// Nine layers: uneven on 2, 4, 6 and 8 stages.
TrainingOptions Options(const Updating& updating, int stages) {
  TrainingOptions options;
  options.shape = {.layers = 9, .hidden = 8, .heads = 1, .sequence = 4, .vocabulary = 256};
  options.split = SplitLayers(options.shape.layers, stages);
  options.microbatch_size = 1;
  options.seed = 7;
  options.optimizer.name = updating.optimizer;
  options.optimizer.learning_rate = updating.optimizer == "sgd" ? 0.1f : 0.01f;
  options.correction.name = updating.correction;
  options.learning_rate = {.peak = options.optimizer.learning_rate, .total_updates = kSteps};
  options.validation_microbatches = 1;
  options.deadline = std::chrono::seconds(60);
  options.poison_freed = true;
  return options;
}

TrainingResult Synchronously(const Program& program, const TrainingOptions& options) {
  std::vector<std::unique_ptr<SynchronousTransport>> transports;
  return TrainOnThreads(program, options, TestCorpus(), [&](int, RankBackend inner, RunControl&) {
    transports.push_back(std::make_unique<SynchronousTransport>(*inner.transport));
    return RankBackend{inner.compute, transports.back().get()};
  });
}

void ExpectPeaksAsPlanned(const Program& program, const TrainingResult& result) {
  const std::vector<int> slots = NeverDelayingSlots(program);
  for (int rank = 0; rank < program.schedule().ranks; ++rank) {
    const RankPlan plan = PlanRank(program, rank, slots);
    int handovers = 0;
    for (const MessagePlan& messages : plan.messages) {
      if (messages.lane == kHandover) handovers = messages.buffers;
    }
    EXPECT_EQ(result.peak_handovers[static_cast<size_t>(rank)], handovers);
    for (const StagePlan& stage : plan.stages) {
      const auto s = static_cast<size_t>(stage.stage);
      EXPECT_EQ(result.peak_activations[s], program.PeakInFlight(stage.stage)) << s;
      EXPECT_EQ(result.peak_kept[s], stage.kept_slots) << s;
      // Late updates leave one of 2BW's two versions unread where nothing runs ahead.
      const int versions = program.versions(stage.stage).weight_versions;
      if (program.schedule().policy == WeightPolicy::kDoubleBuffered) {
        EXPECT_LE(result.peak_versions[s], versions) << s;
      } else {
        EXPECT_EQ(result.peak_versions[s], versions) << s;
      }
    }
  }
}

/// Threads, over a synchronous transport too, and the serial reference of the schedule.
std::string Agreed(const Program& program, const TrainingOptions& options,
                   bool synchronously = true) {
  const TrainingResult serial = TrainSerially(PlanOf(program), options, TestCorpus());
  EXPECT_FALSE(serial.diverged);
  const TrainingResult threads = TrainOnThreads(program, options, TestCorpus());
  EXPECT_EQ(threads.weights_sha256, serial.weights_sha256);
  EXPECT_EQ(threads.step_losses, serial.step_losses);
  EXPECT_EQ(threads.validation_loss, serial.validation_loss);
  ExpectPeaksAsPlanned(program, threads);
  // With a connection for each pair of ranks, as between processes.
  EXPECT_EQ(TrainOnSocketPairs(program, options, TestCorpus()).weights_sha256,
            serial.weights_sha256);
  if (synchronously) {
    EXPECT_EQ(Synchronously(program, options).weights_sha256, serial.weights_sha256);
  }
  return serial.weights_sha256;
}

/// Of the error that `make` must end in.
template <class Make>
std::string ReasonOf(Make make) {
  try {
    make();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

class Matrix : public testing::TestWithParam<std::string> {};

TEST_P(Matrix, OnAnyNumberOfRanksWithAnyUpdateEqualsTheSerialReference) {
  const std::string& schedule = GetParam();
  // Those that add up in ascending order, on weights that are not late.
  const bool plain = schedule == "gpipe" || schedule == "1f1b" || schedule == "interleaved-1f1b";
  std::map<std::string, std::string> of_any;
  if (plain) {
    for (const Updating& updating : Updatings()) {
      of_any[updating.optimizer + updating.correction] =
          TrainSerially(PlanOfDelays({0}, 1, kMicrobatches, kSteps), Options(updating, 1),
                        TestCorpus())
              .weights_sha256;
    }
  }
  for (int ranks = 1; ranks <= kMostRanks; ++ranks) {
    const GeneratorOptions sizes{.ranks = ranks, .microbatches = kMicrobatches};
    if (schedule == "dualpipe" && ranks % 2 != 0) {
      EXPECT_NE(ReasonOf([&] { Generate(schedule, sizes); }).find("must be even"),
                std::string::npos);
      continue;
    }
    const Program program(Generate(schedule, sizes), kSteps);
    for (const Updating& updating : Updatings()) {
      SCOPED_TRACE(fmt::format("{} ranks, {}, {}", ranks, updating.optimizer, updating.correction));
      // Messages know nothing of optimizers.
      const bool synchronously = updating.optimizer == "sgd";
      const std::string digest =
          Agreed(program, Options(updating, program.schedule().stages), synchronously);
      if (!plain) continue;
      EXPECT_EQ(digest, of_any.at(updating.optimizer + updating.correction));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, Matrix, testing::ValuesIn(EverySchedule()),
                         [](const auto& parameter) { return CaseName(parameter.param); });

TEST_P(Matrix, WithAnyNumberOfMicrobatchesRunsOrIsRefusedWithAReason) {
  const std::string& schedule = GetParam();
  const std::vector<std::string> reasons = {"must be even",   "needs an even number of at least",
                                            "needs at least", "does not exist yet",
                                            "multiple of",    "group"};
  int runs = 0;
  for (int ranks = kSanitized ? kMostRanks : 2; ranks <= kMostRanks; ++ranks) {
    for (const int m : {1, 2, 3, 5, 8}) {
      SCOPED_TRACE(fmt::format("{} ranks, {} micro-batches", ranks, m));
      std::optional<Program> program;
      const std::string reason = ReasonOf([&] {
        program.emplace(Generate(schedule, {.ranks = ranks, .microbatches = m}), 2 * kSteps);
      });
      if (program) {
        ++runs;
        Agreed(*program, Options({"adamw", "none"}, program->schedule().stages));
        continue;
      }
      EXPECT_TRUE(std::any_of(reasons.begin(), reasons.end(), [&](const std::string& known) {
        return reason.find(known) != std::string::npos;
      })) << reason;
    }
  }
  EXPECT_GE(runs, kSanitized ? 1 : 2);
}

TEST_P(Matrix, WithClippingRunsOrIsRefusedWithAReason) {
  const std::string& schedule = GetParam();
  TrainingOptions options = Options({"adamw", "none"}, 1);
  options.clip_norm = 0.3;
  const bool flushes = schedule != "2bw" && schedule != "pipedream" && schedule != "paci";
  const GeneratorOptions sizes{
      .ranks = 2, .microbatches = kMicrobatches, .norm = true, .barrier = flushes};
  std::optional<Program> program;
  const std::string reason = ReasonOf([&] { program.emplace(Generate(schedule, sizes), kSteps); });
  if (!program) {
    EXPECT_TRUE(schedule == "pipedream" || schedule == "paci") << reason;
    EXPECT_NE(reason.find("norm"), std::string::npos) << reason;
    return;
  }
  options.split = SplitLayers(options.shape.layers, program->schedule().stages);
  const std::string clipped = Agreed(*program, options);
  options.clip_norm = 1e9;
  EXPECT_NE(Agreed(*program, options), clipped);
}

TEST_P(Matrix, OfALlamaEqualsTheSerialReference) {
  for (const int ranks : {2, 4}) {
    const Program program(Generate(GetParam(), {.ranks = ranks, .microbatches = kMicrobatches}),
                          kSteps);
    TrainingOptions options = Options({"muon", "none"}, program.schedule().stages);
    const std::string gpt = Agreed(program, options, false);
    options.shape.heads = 4;
    options.shape.key_value_heads = 2;
    options.shape.norm = NormChoice::kRms;
    options.shape.positions = PositionChoice::kRotary;
    options.shape.mlp = MlpChoice::kSwiGlu;
    options.shape.bias = false;
    EXPECT_NE(Agreed(program, options), gpt);
  }
}

TEST_P(Matrix, WithRecomputationChangesNoBitOrIsRefusedWithAReason) {
  const Program program(Generate(GetParam(), {.ranks = 3 + (GetParam() == "dualpipe" ? 1 : 0),
                                              .microbatches = kMicrobatches}),
                        kSteps);
  TrainingOptions options = Options({"adamw", "none"}, program.schedule().stages);
  const SerialPlan plan = PlanOf(program);
  const std::string kept = TrainSerially(plan, options, TestCorpus()).weights_sha256;
  for (const Recompute recompute : {Recompute::kSelective, Recompute::kFull}) {
    options.recompute = recompute;
    if (program.schedule().policy == WeightPolicy::kLatest) {
      const std::string reason = ReasonOf([&] { TrainSerially(plan, options, TestCorpus()); });
      EXPECT_NE(reason.find("newer weights than their forwards"), std::string::npos);
      EXPECT_EQ(ReasonOf([&] { TrainOnThreads(program, options, TestCorpus()); }), reason);
      continue;
    }
    EXPECT_EQ(Agreed(program, options, false), kept);
  }
}

TEST_P(Matrix, ReadFromItsCsvEndsTheSame) {
  for (const int ranks : {2, 4}) {
    const Schedule schedule = Generate(GetParam(), {.ranks = ranks, .microbatches = kMicrobatches});
    const std::string beside = CsvIsComplete(schedule) ? std::string() : ToCsvSidecar(schedule);
    const Program read(ParseCsv(ToCsv(schedule, schedule.body), beside, "read.csv"), kSteps);
    const TrainingOptions options = Options({"sgd", "none"}, schedule.stages);
    EXPECT_EQ(
        TrainOnThreads(read, options, TestCorpus()).weights_sha256,
        TrainSerially(PlanOf(Program(schedule, kSteps)), options, TestCorpus()).weights_sha256);
  }
}

struct Variant {
  std::string schedule;
  GeneratorOptions options;
};

TEST(MatrixOf, VariantsOfSchedules) {
  const int m = kMicrobatches;
  const std::vector<Variant> variants = {
      {"1f1b", {.ranks = 3, .microbatches = m, .warmup = {5, 2, 0}}},
      {"interleaved-1f1b", {.ranks = 3, .microbatches = m, .chunks = 3}},
      {"interleaved-1f1b", {.ranks = 2, .microbatches = 10, .group = 5}},
      {"interleaved-1f1b", {.ranks = 1, .microbatches = 4, .chunks = 4}},
      {"interleaved-1f1b",
       {.ranks = 2, .microbatches = 6, .group = GeneratorOptions::kFlexibleGroup}},
      {"looped-bfs", {.ranks = 2, .microbatches = 5, .chunks = 4}},
      {"zb-auto", {.ranks = 4, .microbatches = m, .memory_limit = 8}},
      {"zb-auto", {.ranks = 3, .microbatches = 7, .chunks = 1}},
      {"pipedream", {.ranks = 4, .microbatches = 1}},
      {"pipedream", {.ranks = 3, .microbatches = 2, .body = "zb-h2"}},
      {"pipedream", {.ranks = 2, .microbatches = 4, .chunks = 2}},
      {"pipedream", {.ranks = 2, .microbatches = 4, .body = "zb-v"}},
      {"pipedream", {.ranks = 4, .microbatches = 2, .vertical_sync = true}},
      {"paci", {.ranks = 4, .microbatches = 2, .body = "zb-h1"}},
      {"paci", {.ranks = 2, .microbatches = 4, .chunks = 2}},
      {"paci", {.ranks = 2, .microbatches = 3, .body = "zb-v"}},
      {"2bw", {.ranks = 4, .microbatches = 8, .warmup_slope = 2}},
      {"2bw", {.ranks = 2, .microbatches = 4, .chunks = 2}},
      {"2bw", {.ranks = 3, .microbatches = 8, .late_update = true, .body = "zb-h1"}},
      {"2bw", {.ranks = 3, .microbatches = 8, .body = "zb-h2"}},
      {"2bw", {.ranks = 3, .microbatches = 8, .body = "zb-v"}},
      {"2bw", {.ranks = 3, .microbatches = 8, .late_update = true, .body = "zb-v"}},
      {"2bw", {.ranks = 4, .microbatches = 8, .norm = true, .body = "zb-h1"}},
      {"2bw", {.ranks = 3, .microbatches = 8, .norm = true, .body = "zb-v"}},
      {"2bw", {.ranks = 2, .microbatches = 4, .norm = true, .chunks = 2}},
      {"2bw", {.ranks = 3, .microbatches = 6, .norm = true, .late_update = false}},
  };
  for (const Variant& variant : variants) {
    const Program program(Generate(variant.schedule, variant.options), 2 * kSteps);
    SCOPED_TRACE(fmt::format("{}, {} ranks, {}, {} chunks", variant.schedule, variant.options.ranks,
                             variant.options.body, variant.options.chunks));
    TrainingOptions options = Options({"adamw", "error-feedback"}, program.schedule().stages);
    if (variant.options.norm) options.clip_norm = 0.3;
    Agreed(program, options);
  }
}

TEST(MatrixOf, SchedulesByHand) {
  // Neighbours on one rank, gradients out of order and split or not by micro-batch, a W far behind.
  const Schedule neighbours =
      ParseCsv("0F0,1F0,0F1,1F1,1I1,1B0,0B1,1W1,0I0,0F2,1F2,1B2,0W0,0B2\n", "", "neighbours.csv");
  // Four stages out of order on two ranks, one pair overlapped.
  const Schedule knot = ParseCsv(
      "0F0,0F1,3F0,3B0,(3F1;0B0)OVERLAP_F_B,3B1,0B1\n"
      "1F0,2F0,1F1,2F1,2B0,1B0,2B1,1B1\n",
      "", "knot.csv");
  for (const Schedule& schedule : {neighbours, knot}) {
    SCOPED_TRACE(schedule.name);
    Agreed(Program(schedule, kSteps), Options({"muon", "none"}, schedule.stages));
  }
}

Action Made(ActionKind kind, int stage, int microbatch) {
  return {microbatch, static_cast<uint16_t>(stage), kind, false};
}

/// One slice, held twice, by `ranks` ranks.
Schedule HeldTwice(int ranks) {
  using Purpose = CollectiveGroup::Purpose;
  Schedule schedule;
  schedule.name = "held twice";
  schedule.ranks = ranks;
  schedule.stages = 1;
  schedule.streams = 2;
  schedule.microbatches = 2;
  schedule.placement = {0, ranks - 1};
  schedule.groups = {{Purpose::kWeights, {0, 1}}};
  schedule.body.resize(static_cast<size_t>(ranks));
  return schedule;
}

TEST(MatrixOf, BothCopiesOnOneRankCountOnceInTheNorm) {
  using Kind = ActionKind;
  Schedule schedule = HeldTwice(1);
  schedule.groups.push_back({CollectiveGroup::Purpose::kNorm, {0, 1}});
  schedule.body[0] = {Made(Kind::kForward, 0, 0),        Made(Kind::kBackward, 0, 0),
                      Made(Kind::kForward, 1, 1),        Made(Kind::kBackwardInput, 1, 1),
                      Made(Kind::kBackwardWeight, 1, 1), Made(Kind::kAllReduce, 0, 0),
                      Made(Kind::kAllReduce, 1, 0),      Made(Kind::kUpdate, 1, 0),
                      Made(Kind::kUpdate, 0, 0)};
  TrainingOptions options = Options({"adamw", "none"}, 1);
  options.clip_norm = 0.3;
  const std::string clipped = Agreed(Program(schedule, kSteps), options);
  options.clip_norm = 1e9;
  EXPECT_NE(Agreed(Program(schedule, kSteps), options), clipped);
  std::swap(schedule.body[0][5], schedule.body[0][6]);
  EXPECT_NE(ReasonOf([&] {
              TrainOnThreads(Program(schedule, kSteps), options, TestCorpus());
            }).find("norm of gradients is taken before their copies are added"),
            std::string::npos);
}

TEST(MatrixOf, CopiesOfWhichOneRunsAheadAreAllAsLate) {
  using Kind = ActionKind;
  Schedule schedule = HeldTwice(2);
  schedule.policy = WeightPolicy::kStashed;
  schedule.body[0] = {Made(Kind::kForward, 0, 0), Made(Kind::kBackward, 0, 0),
                      Made(Kind::kAllReduce, 0, 0), Made(Kind::kUpdate, 0, 0)};
  schedule.body[1] = {Made(Kind::kForward, 1, 3), Made(Kind::kBackward, 1, 1),
                      Made(Kind::kAllReduce, 0, 0), Made(Kind::kUpdate, 1, 0)};
  const Program program(schedule, 3 * kSteps);
  EXPECT_EQ(program.versions(0).gradient_delay, 0);
  EXPECT_EQ(program.versions(1).gradient_delay, 1);
  Agreed(program, Options({"adamw", "error-feedback"}, 1));
}

TEST(MatrixOf, CopiesAgreeOnBrokenWeightsToo) {
  const Program program(Generate("dualpipe", {.ranks = 2, .microbatches = 4}), 1);
  TrainingOptions options = Options({"adamw", "none"}, 2);
  options.learning_rate.peak = 3e38f;
  EXPECT_TRUE(TrainOnThreads(program, options, TestCorpus()).diverged);
  EXPECT_TRUE(TrainSerially(PlanOf(program), options, TestCorpus()).diverged);
}

TEST(MatrixOf, RefusalsOfWhatWouldNotBeOneNetwork) {
  const auto refusal = [](const Schedule& schedule) {
    const TrainingOptions options = Options({"sgd", "none"}, schedule.stages);
    const Program program(schedule, kSteps);
    const std::string reason = ReasonOf([&] { TrainOnThreads(program, options, TestCorpus()); });
    EXPECT_EQ(reason, ReasonOf([&] { PlanOf(program); }));
    return reason;
  };
  EXPECT_NE(refusal(Generate("1f1b", {.ranks = 2, .microbatches = 2, .reduction = true}))
                .find("of which there is one (--replicas)"),
            std::string::npos);
  Schedule apart = Generate("dualpipe", {.ranks = 2, .microbatches = 4});
  apart.groups.clear();
  for (auto& body : apart.body) {
    std::erase_if(body, [](const Action& a) { return a.kind == ActionKind::kAllReduce; });
  }
  EXPECT_NE(refusal(apart).find("would drift apart"), std::string::npos);
  Schedule mixed = Generate("dualpipe", {.ranks = 2, .microbatches = 4});
  for (CollectiveGroup& group : mixed.groups) group.stages = {0, 1};
  EXPECT_NE(refusal(mixed).find("are not copies"), std::string::npos);
}

/// Looks at a message when the action that consumes it has been done.
class SpoilWatch : public Compute {
 public:
  SpoilWatch(Compute& inner, std::atomic<int>& spoilt) : inner_(inner), spoilt_(spoilt) {}
  std::byte* MessageBuffer(int lane, int index) override {
    return inner_.MessageBuffer(lane, index);
  }
  std::span<float> GradientBuffer(int stage, int index) override {
    return inner_.GradientBuffer(stage, index);
  }
  std::span<float> SharedGradient(int stage, int index) override {
    return inner_.SharedGradient(stage, index);
  }
  EventPtr Start(const ComputeTask& task, std::span<const EventPtr> after) override {
    const EventPtr event = inner_.Start(task, after);
    if (task.input != nullptr && std::isnan(*reinterpret_cast<const float*>(task.input))) {
      ++spoilt_;
    }
    return event;
  }

 private:
  Compute& inner_;
  std::atomic<int>& spoilt_;
};

TEST(Poison, FillsWhatIsFreed) {
  const Program program(Generate("zb-v", {.ranks = 2, .microbatches = 4}), kSteps);
  TrainingOptions options = Options({"sgd", "none"}, 4);
  for (const bool poison : {false, true}) {
    options.poison_freed = poison;
    std::atomic<int> spoilt = 0;
    std::vector<std::unique_ptr<SpoilWatch>> watches;
    TrainOnThreads(program, options, TestCorpus(), [&](int, RankBackend inner, RunControl&) {
      watches.push_back(std::make_unique<SpoilWatch>(*inner.compute, spoilt));
      return RankBackend{watches.back().get(), inner.transport};
    });
    EXPECT_EQ(spoilt, poison ? 2 * 3 * 4 * kSteps : 0);
  }
}

}  // namespace
}  // namespace pipelag
