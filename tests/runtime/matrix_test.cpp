// The central test over everything that is registered: every schedule on every number of ranks ends
// with the weights of its serial reference, whatever updates them, whatever goes with it and
// however messages move. What it refuses, it refuses with its reason.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "models/schedule/generators.h"
#include "models/schedule/text.h"
#include "tests/runtime/agreed.h"
#include "tests/runtime/every_schedule.h"
#include "tests/runtime/small_run.h"

namespace pipelag {
namespace {

using testing::HasSubstr;

constexpr int kMostRanks = 4;
constexpr int64_t kFewSteps = 4;

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
TrainingOptions OfNine(const Updating& updating, int stages) {
  TrainingOptions options = Options(updating.optimizer, updating.correction, 1);
  options.shape.layers = 9;
  options.split = SplitLayers(options.shape.layers, stages);
  return options;
}

TrainingResult Agreed(const Program& program, const TrainingOptions& options) {
  return Agreed(program, options, TestCorpus());
}

/// Those that add up in ascending order, on weights that are not late.
bool IsPlain(const std::string& schedule) {
  return schedule == "gpipe" || schedule == "1f1b" || schedule == "interleaved-1f1b";
}

/// As the literature has it: what each schedule asks of the sizes. Empty: runs.
std::string RefusalOf(const std::string& schedule, int ranks, int m) {
  if (schedule == "dualpipe" && ranks % 2 != 0) return "must be even";
  if (schedule == "dualpipe" && (m % 2 != 0 || m < 2 * ranks)) {
    return fmt::format("needs an even number of at least {} micro-batches", 2 * ranks);
  }
  if (schedule == "dualpipe-v" && m < 2 * ranks) {
    return fmt::format("needs at least {} micro-batches", 2 * ranks);
  }
  if (schedule == "interleaved-1f1b" && m % ranks != 0) {
    return fmt::format("{} micro-batches are no multiple of {}", m, ranks);
  }
  if (schedule == "2bw" && m < ranks - 1) {
    return "at least as many micro-batches per update as stage 0 runs ahead";
  }
  return "";
}

class Matrix : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Schedules, Matrix, testing::ValuesIn(EverySchedule()),
                         [](const auto& parameter) { return CaseName(parameter.param); });

TEST_P(Matrix, OnAnyNumberOfRanksWithAnyUpdateEqualsTheSerialReference) {
  const std::string& schedule = GetParam();
  std::map<std::string, std::string> of_any;
  if (IsPlain(schedule)) {
    for (const Updating& updating : Updatings()) {
      of_any[updating.optimizer + updating.correction] =
          TrainSerially(PlanOfDelays({0}, 1, kMicrobatches, kFewSteps), OfNine(updating, 1),
                        TestCorpus())
              .weights_sha256;
    }
  }
  for (int ranks = 1; ranks <= kMostRanks; ++ranks) {
    if (!RefusalOf(schedule, ranks, kMicrobatches).empty()) continue;  // asserted below
    const Program program(Generate(schedule, {.ranks = ranks, .microbatches = kMicrobatches}),
                          kFewSteps);
    for (const Updating& updating : Updatings()) {
      SCOPED_TRACE(fmt::format("{} ranks, {}, {}", ranks, updating.optimizer, updating.correction));
      const std::string digest =
          Agreed(program, OfNine(updating, program.schedule().stages)).weights_sha256;
      if (!IsPlain(schedule)) continue;
      EXPECT_EQ(digest, of_any.at(updating.optimizer + updating.correction));
    }
  }
}

TEST_P(Matrix, WithAnyNumberOfMicrobatchesRunsOrIsRefusedWithItsReason) {
  const std::string& schedule = GetParam();
  for (int ranks = 1; ranks <= kMostRanks; ++ranks) {
    for (const int m : {1, 2, 3, 5, 8, 12}) {
      SCOPED_TRACE(fmt::format("{} ranks, {} micro-batches", ranks, m));
      std::optional<Program> program;
      const std::string reason = ReasonOf([&] {
        program.emplace(Generate(schedule, {.ranks = ranks, .microbatches = m}), 2 * kFewSteps);
      });
      const std::string expected = RefusalOf(schedule, ranks, m);
      EXPECT_EQ(program.has_value(), expected.empty()) << reason;
      EXPECT_THAT(reason, HasSubstr(expected));
      // Twelve is what everything else runs with.
      if (!program || m == 12 || ranks == 1 || (kSanitized && ranks != kMostRanks)) continue;
      Agreed(*program, OfNine({"adamw", "none"}, program->schedule().stages));
    }
  }
}

/// One way of training, beside a schedule.
struct Mix {
  int ranks;
  const char* optimizer;
  const char* correction;
  bool tied;
  bool clips;
  Recompute recompute;
  bool uneven;
};

// Every choice of one meets every choice of each other.
constexpr auto kNone = Recompute::kNone;
constexpr auto kSelective = Recompute::kSelective;
constexpr auto kFull = Recompute::kFull;
constexpr std::array<Mix, 12> kMixes = {{
    {1, "sgd", "error-feedback", true, true, kFull, true},
    {1, "adamw", "none", false, true, kNone, false},
    {1, "muon", "none", true, false, kSelective, true},
    {2, "sgd", "error-feedback", false, false, kNone, true},
    {2, "adamw", "error-feedback", true, true, kSelective, false},
    {2, "muon", "none", false, true, kFull, true},
    {3, "sgd", "error-feedback", true, false, kNone, false},
    {3, "adamw", "none", false, false, kFull, true},
    {3, "muon", "none", true, true, kSelective, false},
    {4, "sgd", "none", false, true, kSelective, true},
    {4, "adamw", "error-feedback", false, false, kFull, false},
    {4, "muon", "error-feedback", true, false, kNone, true},
}};

TEST(MatrixOf, MixesInWhichEveryPairOfChoicesMeets) {
  using Choices = std::array<std::string, 7>;
  const auto choices = [](const Mix& mix) {
    return Choices{std::to_string(mix.ranks),
                   mix.optimizer,
                   mix.correction,
                   std::to_string(mix.tied),
                   std::to_string(mix.clips),
                   std::to_string(static_cast<int>(mix.recompute)),
                   std::to_string(mix.uneven)};
  };
  std::array<std::set<std::string>, 7> of_each;
  std::set<std::tuple<size_t, std::string, size_t, std::string>> met;
  for (const Mix& mix : kMixes) {
    const Choices own = choices(mix);
    for (size_t i = 0; i < own.size(); ++i) {
      of_each[i].insert(own[i]);
      for (size_t k = 0; k < i; ++k) met.emplace(k, own[k], i, own[i]);
    }
  }
  size_t pairs = 0;
  for (size_t i = 0; i < of_each.size(); ++i) {
    for (size_t k = 0; k < i; ++k) pairs += of_each[i].size() * of_each[k].size();
  }
  EXPECT_EQ(met.size(), pairs);
  EXPECT_EQ(of_each[0].size(), static_cast<size_t>(kMostRanks));
  for (size_t i = 1; i < of_each.size(); ++i) EXPECT_GE(of_each[i].size(), 2u);
}

/// On one stage as on many.
TrainingOptions OptionsOf(const Mix& mix, int stages) {
  TrainingOptions options = OfNine({mix.optimizer, mix.correction}, stages);
  options.shape.tied = mix.tied;
  if (mix.uneven && stages > 1 && stages < options.shape.layers) {
    std::vector<int> counts(static_cast<size_t>(stages), 1);
    counts[static_cast<size_t>(stages) / 2] += options.shape.layers - stages;
    options.split = SplitLayers(options.shape.layers, counts);
  }
  if (mix.clips) options.clip_norm = 0.3;
  options.recompute = mix.recompute;
  return options;
}

Schedule Made(const std::string& schedule, const Mix& mix) {
  return Generate(
      schedule,
      {.ranks = mix.ranks, .microbatches = kMicrobatches, .norm = mix.clips, .tied = mix.tied});
}

/// What is left of a mix once everything that the schedule refuses has been refused.
Mix Accepted(const std::string& schedule, Mix mix) {
  if (const std::string expected = RefusalOf(schedule, mix.ranks, kMicrobatches);
      !expected.empty()) {
    EXPECT_THAT(ReasonOf([&] { Made(schedule, mix); }), HasSubstr(expected));
    ++mix.ranks;
  }
  const bool waits = schedule != "pipedream" && schedule != "paci";
  if (!waits && mix.clips) {
    EXPECT_THAT(ReasonOf([&] { Made(schedule, mix); }),
                HasSubstr(schedule + " cannot wait for a global gradient norm (--clip-norm)"));
    mix.clips = false;
  }
  if (!waits && mix.tied) {
    EXPECT_THAT(ReasonOf([&] { Made(schedule, mix); }),
                HasSubstr(schedule + " cannot wait for a tied embedding (--tied)"));
    mix.tied = false;
  }
  // On one rank nothing is late.
  if (schedule == "paci" && mix.ranks > 1 && mix.recompute != kNone) {
    const Program program(Made(schedule, mix), kFewSteps);
    const TrainingOptions options = OptionsOf(mix, program.schedule().stages);
    const std::string reason =
        ReasonOf([&] { TrainSerially(PlanOf(program), options, TestCorpus()); });
    EXPECT_THAT(reason, HasSubstr("newer weights than their forwards"));
    EXPECT_EQ(ReasonOf([&] { TrainOnThreads(program, options, TestCorpus()); }), reason);
    mix.recompute = kNone;
  }
  return mix;
}

TEST_P(Matrix, WithWhateverGoesWithItEqualsTheSerialReference) {
  const std::string& schedule = GetParam();
  for (size_t k = 0; k < kMixes.size(); ++k) {
    if (kSanitized && k % 4 != 1) continue;  // instrumented threads are slow
    SCOPED_TRACE(fmt::format("mix {}", k));
    const Mix mix = Accepted(schedule, kMixes[k]);
    const Program program(Made(schedule, mix), kFewSteps);
    TrainingOptions options = OptionsOf(mix, program.schedule().stages);
    const std::string digest = Agreed(program, options).weights_sha256;
    if (options.recompute != kNone) {
      options.recompute = kNone;
      EXPECT_EQ(TrainOnThreads(program, options, TestCorpus()).weights_sha256, digest);
    }
    if (mix.clips) {
      options.clip_norm = 1e9;
      EXPECT_NE(TrainOnThreads(program, options, TestCorpus()).weights_sha256, digest);
    }
    if (!IsPlain(schedule)) continue;
    // One stage: no message, no exchange.
    EXPECT_EQ(TrainSerially(PlanOfDelays({0}, 1, kMicrobatches, kFewSteps), OptionsOf(mix, 1),
                            TestCorpus())
                  .weights_sha256,
              digest);
  }
}

TEST_P(Matrix, OfALlamaEqualsTheSerialReference) {
  for (const int ranks : {2, 4}) {
    const Program program(Generate(GetParam(), {.ranks = ranks, .microbatches = kMicrobatches}),
                          kFewSteps);
    TrainingOptions options = OfNine({"muon", "none"}, program.schedule().stages);
    const std::string gpt = TrainOnThreads(program, options, TestCorpus()).weights_sha256;
    options.shape.heads = 4;
    options.shape.key_value_heads = 2;
    options.shape.norm = NormChoice::kRms;
    options.shape.positions = PositionChoice::kRotary;
    options.shape.mlp = MlpChoice::kSwiGlu;
    options.shape.bias = false;
    EXPECT_NE(Agreed(program, options).weights_sha256, gpt);
  }
}

TEST_P(Matrix, ReadFromItsCsvEndsTheSame) {
  for (const int ranks : {2, 4}) {
    const Schedule schedule = Generate(GetParam(), {.ranks = ranks, .microbatches = kMicrobatches});
    const std::string beside = CsvIsComplete(schedule) ? std::string() : ToCsvSidecar(schedule);
    const Program read(ParseCsv(ToCsv(schedule, schedule.body), beside, "read.csv"), kFewSteps);
    const TrainingOptions options = OfNine({"sgd", "none"}, schedule.stages);
    EXPECT_EQ(
        TrainOnThreads(read, options, TestCorpus()).weights_sha256,
        TrainSerially(PlanOf(Program(schedule, kFewSteps)), options, TestCorpus()).weights_sha256);
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
      {"1f1b", {.ranks = 3, .microbatches = m, .norm = true, .barrier = true}},
      {"dualpipe", {.ranks = 2, .microbatches = m, .norm = true, .barrier = true}},
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
    const Program program(Generate(variant.schedule, variant.options), 2 * kFewSteps);
    SCOPED_TRACE(fmt::format("{}, {} ranks, {}, {} chunks", variant.schedule, variant.options.ranks,
                             variant.options.body, variant.options.chunks));
    TrainingOptions options = OfNine({"adamw", "error-feedback"}, program.schedule().stages);
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
    Agreed(Program(schedule, kFewSteps), OfNine({"muon", "none"}, schedule.stages));
  }
}

}  // namespace
}  // namespace pipelag
