// Going on from a checkpoint is going on with the run that left it: to the last bit, over every
// schedule, number of ranks, optimizer and correction; and whatever does not fit is refused by
// name.
#include "runtime/checkpoint/checkpoint.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "models/file.h"
#include "models/schedule/generators.h"
#include "runtime/checkpoint/facts.h"
#include "runtime/checkpoint/folder.h"
#include "runtime/checkpoint/writer.h"
#include "runtime/cpu/threads.h"
#include "runtime/data/grammar.h"
#include "runtime/serial.h"
#include "tests/runtime/scratch_folder.h"

namespace pipelag {
namespace {

using testing::HasSubstr;

constexpr int64_t kSteps = 7;
constexpr int kMicrobatches = 12;  // shared evenly by 1 to 4 ranks, and enough for two directions

const Corpus& TestCorpus() {
  static const Corpus corpus = GrammarCorpus(3, 4, 4000);
  return corpus;
}

TrainingOptions Options(const std::string& optimizer, const std::string& correction, int stages) {
  TrainingOptions options;
  options.shape = {.layers = 8, .hidden = 8, .heads = 1, .sequence = 4, .vocabulary = 128};
  options.split = SplitLayers(options.shape.layers, stages);
  options.microbatch_size = 1;
  options.seed = 7;
  options.optimizer.name = optimizer;
  options.optimizer.learning_rate = optimizer == "sgd" ? 0.1f : 0.01f;
  options.correction.name = correction;
  options.learning_rate = {
      .peak = options.optimizer.learning_rate, .warmup_updates = 3, .total_updates = kSteps};
  options.validation_microbatches = 1;
  options.deadline = std::chrono::seconds(60);
  options.poison_freed = true;
  return options;
}

/// A way of running: ranks over threads, or the serial reference.
struct Way {
  std::optional<Program> program;  ///< with any number of steps; none: by hand
  SerialPlan plan;
  bool serial = false;
};

Way Threads(const std::string& schedule, const GeneratorOptions& options) {
  Program program(Generate(schedule, options), kSteps);
  SerialPlan plan = PlanOf(program);
  return {std::move(program), std::move(plan), false};
}

Way Threads(const std::string& schedule, int ranks, int m = kMicrobatches) {
  return Threads(schedule, {.ranks = ranks, .microbatches = m});
}

Way Serially(Way way) {
  way.serial = true;
  return way;
}

Way ByHand(const std::vector<int>& delays, int stages, int m = kMicrobatches) {
  return {std::nullopt, PlanOfDelays(delays, stages, m, kSteps), true};
}

TrainingResult Train(const Way& way, const TrainingOptions& options, int64_t steps) {
  if (way.serial) {
    SerialPlan plan = way.plan;
    plan.steps = steps;
    return TrainSerially(plan, options, TestCorpus());
  }
  return TrainOnThreads(way.program->WithSteps(steps), options, TestCorpus());
}

std::vector<int> DelaysOf(const SerialPlan& plan) {
  std::vector<int> delays;
  for (const SerialStage& stage : plan.stages) {
    delays.push_back(*std::max_element(stage.forward_delay.begin(), stage.forward_delay.end()));
  }
  return delays;
}

/// From `start` (a folder, or none) to step `last`, with checkpoints in `folder`.
TrainingResult TrainFrom(const Way& way, TrainingOptions options,
                         const std::filesystem::path& start, const CheckpointSettings& settings,
                         int64_t last) {
  const std::string facts = RunFacts(options, way.plan, TestCorpus()).dump();
  const std::string summation = SummationOf(options, way.plan).dump();
  if (!start.empty()) {
    const auto checkpoint = std::make_shared<const Checkpoint>(start);
    checkpoint->CheckFacts(facts);
    options.start = checkpoint;
  }
  std::optional<CheckpointWriter> writer;
  if (!settings.folder.empty()) {
    writer.emplace(settings, CheckpointFacts{facts, summation, 12, way.plan.name, 1},
                   DelaysOf(way.plan), options.first_step(), last);
    options.checkpoints = &*writer;
  }
  return Train(way, options, last - options.first_step());
}

TrainingOptions For(const Way& way, const std::string& optimizer, const std::string& correction) {
  return Options(optimizer, correction, static_cast<int>(way.plan.stages.size()));
}

/// Trains `before` up to each of some steps, goes on with `after` from there, and holds it against
/// `before` left alone.
void ExpectGoesOn(const Way& before, const Way& after, const std::string& optimizer,
                  const std::string& correction, const std::vector<int64_t>& stops) {
  SCOPED_TRACE(optimizer + ", " + correction);
  const ScratchFolder folder;
  const TrainingOptions of_before = For(before, optimizer, correction);
  const TrainingResult whole =
      TrainFrom(before, of_before, {}, {.folder = folder.path(), .every = 1}, kSteps);
  ASSERT_FALSE(whole.diverged);
  for (const int64_t stop : stops) {
    SCOPED_TRACE(fmt::format("from step {}", stop));
    const TrainingResult rest = TrainFrom(after, For(after, optimizer, correction),
                                          folder.path() / StepFolderName(stop), {}, kSteps);
    EXPECT_EQ(rest.weights_sha256, whole.weights_sha256);
    EXPECT_EQ(rest.validation_loss, whole.validation_loss);
    EXPECT_EQ(rest.step_losses,
              std::vector<double>(whole.step_losses.begin() + stop, whole.step_losses.end()));
  }
}

class Resume : public testing::TestWithParam<std::string> {};

std::vector<std::string> Names() {
  std::vector<std::string> names;
  for (const Generator& generator : Generators()) names.emplace_back(generator.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Schedules, Resume, testing::ValuesIn(Names()), [](const auto& parameter) {
  std::string name;
  for (const std::string::value_type c : parameter.param) name += c == '-' ? '_' : c;
  return name;
});

TEST_P(Resume, OnAnyNumberOfRanksIsTheRunLeftAlone) {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    if (kSanitized && ranks != 3) continue;
    std::optional<Way> way;
    try {
      way = Threads(GetParam(), ranks);
    } catch (const Error&) {
      continue;  // what a generator refuses is the matrix's business
    }
    if (way->plan.stages.size() > 8) continue;
    SCOPED_TRACE(fmt::format("{} ranks", ranks));
    ExpectGoesOn(*way, *way, "adamw", "error-feedback", {1, 4});
    if (ranks % 2 == 0) continue;
    ExpectGoesOn(*way, Serially(*way), "sgd", "none", {3});
    ExpectGoesOn(Serially(*way), *way, "muon", "error-feedback", {2});
  }
}

TEST(ResumeOf, WithDelaysOfOneBatchPerUpdate) {
  // PipeDream as in its paper: delays 3, 2, 1, 0.
  const Way way = Threads("pipedream", 4, 1);
  EXPECT_EQ(DelaysOf(way.plan), (std::vector<int>{3, 2, 1, 0}));
  const Way sync = Threads("pipedream", {.ranks = 4, .microbatches = 2, .vertical_sync = true});
  const Way paci = Threads("paci", 4, 2);
  for (const Way& one : {way, sync, paci}) {
    ExpectGoesOn(one, one, "adamw", "none", {1, 2, 3, 4, 5, 6});
    ExpectGoesOn(one, Serially(one), "sgd", "none", {2, 6});
  }
  ExpectGoesOn(way, ByHand({3, 2, 1, 0}, 4, 1), "adamw", "error-feedback", {2, 5});
  ExpectGoesOn(ByHand({3, 2, 1, 0}, 4, 1), way, "adamw", "error-feedback", {2, 5});
}

TEST(ResumeOf, AnotherNumberOfRanksOrScheduleOfTheSameDelay) {
  const Way gpipe = Threads("gpipe", 2);
  for (const Way& after : {Threads("1f1b", 4), Threads("interleaved-1f1b", 2), ByHand({0}, 1)}) {
    ExpectGoesOn(gpipe, after, "adamw", "none", {1, 6});
    ExpectGoesOn(after, gpipe, "muon", "none", {4});
  }
  const Way bw = Threads("2bw", 4);
  const Way late = Threads("2bw", {.ranks = 3, .microbatches = kMicrobatches, .late_update = true});
  for (const Way& after : {Threads("2bw", 1), Threads("2bw", 2), late, ByHand({1}, 1)}) {
    ExpectGoesOn(bw, after, "adamw", "error-feedback", {1, 6});
    ExpectGoesOn(after, bw, "sgd", "none", {1, 4});
  }
}

TEST(ResumeOf, EveryOptimizerAndCorrection) {
  const Way bw = Threads("2bw", 2, 2);
  for (const std::string& optimizer : OptimizerNames()) {
    ExpectGoesOn(bw, bw, optimizer, "none", {2});
    ExpectGoesOn(bw, ByHand({1}, 1, 2), optimizer, "none", {4});
  }
  for (const std::string& correction : CorrectionNames()) {
    ExpectGoesOn(bw, bw, "adamw", correction, {2});
    ExpectGoesOn(bw, ByHand({1}, 1, 2), "adamw", correction, {4});
  }
}

TEST(ResumeOf, ClippingAndSparseCheckpoints) {
  for (const char* schedule : {"1f1b", "2bw"}) {
    const Way way = Threads(schedule, {.ranks = 3, .microbatches = 6, .norm = true});
    TrainingOptions options = For(way, "adamw", "none");
    options.clip_norm = 0.3;
    const ScratchFolder folder;
    const TrainingResult whole = TrainFrom(way, options, {}, {}, kSteps);
    TrainFrom(way, options, {}, {.folder = folder.path(), .every = 4}, 6);
    EXPECT_EQ(CompleteSteps(folder.path()), (std::vector<int64_t>{4, 6}));
    // Twice more: on from 4 to 5, and from there to the end.
    const ScratchFolder second;
    TrainFrom(way, options, folder.path() / StepFolderName(4), {.folder = second.path()}, 5);
    EXPECT_EQ(TrainFrom(way, options, second.path(), {}, kSteps).weights_sha256,
              whole.weights_sha256);
    EXPECT_EQ(TrainFrom(way, options, folder.path(), {}, kSteps).weights_sha256,
              whole.weights_sha256);
  }
}

TEST(ResumeOf, KeepsTheLast) {
  const ScratchFolder folder;
  const Way way = Threads("pipedream", 3, 1);
  TrainFrom(way, For(way, "adamw", "none"), {},
            {.folder = folder.path(), .every = 2, .keep_last = 2}, kSteps);
  EXPECT_EQ(CompleteSteps(folder.path()), (std::vector<int64_t>{6, 7}));
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    EXPECT_THAT(entry.path().filename().string(), testing::AnyOf("step-00000006", "step-00000007"));
  }
}

/// A folder with the checkpoints of steps 2 and 4 of a run.
class ResumeRefusal : public testing::Test {
 protected:
  ResumeRefusal() : way_(Threads("2bw", 2, 4)) {
    TrainFrom(way_, For(way_, "adamw", "error-feedback"), {},
              {.folder = folder_.path(), .every = 2}, 4);
  }

  std::filesystem::path Step(int64_t step) const { return folder_.path() / StepFolderName(step); }

  template <class Make>
  static std::string ReasonOf(Make make) {
    try {
      make();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  std::string Opening(const std::filesystem::path& path) const {
    return ReasonOf([&] { const Checkpoint checkpoint(path); });
  }

  ScratchFolder folder_;
  Way way_;
};

TEST_F(ResumeRefusal, OfDamagedAndPartialOnesNamesTheFile) {
  const std::string stage = "stage-0002-of-0002.safetensors";
  EXPECT_EQ(Opening(folder_.path()), "");
  const std::string whole = ReadFile(Step(4) / stage);
  std::string damaged = whole;
  damaged[damaged.size() - 5] ^= 1;
  WriteFile(Step(4) / stage, damaged);
  EXPECT_THAT(Opening(folder_.path()),
              testing::AllOf(HasSubstr("step-00000004/" + stage), HasSubstr("SHA-256")));
  WriteFile(Step(4) / stage, whole.substr(0, whole.size() - 1));
  EXPECT_THAT(Opening(folder_.path()),
              testing::AllOf(HasSubstr("step-00000004/" + stage), HasSubstr("is damaged: it has")));
  std::filesystem::remove(Step(4) / stage);
  EXPECT_THAT(Opening(folder_.path()),
              testing::AllOf(HasSubstr("step-00000004/" + stage), HasSubstr("is missing")));
  WriteFile(Step(4) / stage, whole);
  EXPECT_EQ(Opening(folder_.path()), "");

  const std::string manifest = ReadFile(Step(4) / kManifestName);
  WriteFile(Step(4) / kManifestName, manifest.substr(0, manifest.size() / 2));
  EXPECT_THAT(Opening(folder_.path()), HasSubstr("step-00000004/manifest.json: not valid JSON"));
  WriteFile(Step(4) / kManifestName, "{\"format\": \"other\"}");
  EXPECT_THAT(Opening(folder_.path()), HasSubstr("manifest.json: is no manifest"));
  std::filesystem::remove(Step(4) / kManifestName);
  EXPECT_THAT(Opening(Step(4)), HasSubstr("was never finished"));
  // What was never finished counts for nothing: the one before it is the latest.
  EXPECT_EQ(Checkpoint(folder_.path()).step(), 2);
  EXPECT_THAT(Opening(folder_.path() / "none"), HasSubstr("no such folder"));
  std::filesystem::remove(Step(2) / kManifestName);
  EXPECT_THAT(Opening(folder_.path()), HasSubstr("holds no finished checkpoint"));
}

TEST_F(ResumeRefusal, OfAnotherRunSaysWhatDiffers) {
  const auto reason = [&](const Way& way, const TrainingOptions& options) {
    return ReasonOf([&] { TrainFrom(way, options, folder_.path(), {}, kSteps); });
  };
  const TrainingOptions same = For(way_, "adamw", "error-feedback");
  EXPECT_EQ(reason(way_, same), "");
  EXPECT_THAT(reason(way_, For(way_, "sgd", "error-feedback")),
              HasSubstr("/optimizer/name is \"adamw\" there, but \"sgd\" here"));
  EXPECT_THAT(reason(way_, For(way_, "adamw", "none")), HasSubstr("/correction/name"));
  const Way sync = Threads("1f1b", 2, 4);
  EXPECT_THAT(reason(sync, For(sync, "adamw", "error-feedback")),
              HasSubstr("/delay/0 is 1 there, but 0 here"));
  const Way deep = Threads("pipedream", 2, 4);
  EXPECT_THAT(reason(deep, For(deep, "adamw", "error-feedback")),
              testing::AllOf(HasSubstr("/delay/4"), testing::Not(HasSubstr("/delay/3"))));
  const Way more = Threads("2bw", 2, 8);
  EXPECT_THAT(reason(more, For(more, "adamw", "error-feedback")), HasSubstr("/microbatches is 4"));
  TrainingOptions other = same;
  other.seed = 8;
  other.learning_rate.peak = 1;
  EXPECT_THAT(reason(way_, other),
              testing::AllOf(HasSubstr("/seed is 7 there, but 8 here"),
                             HasSubstr("/learning_rate/peak"), HasSubstr("manifest.json")));
  other = same;
  other.optimizer.beta1 = 0.5f;
  EXPECT_THAT(reason(way_, other), HasSubstr("/optimizer/beta1 is absent there, but 0.5 here"));
  other = same;
  other.shape.layers = 4;
  other.split = SplitLayers(4, 2);
  EXPECT_THAT(reason(way_, other), HasSubstr("/network/layers is 8 there, but 4 here"));
}

TEST_F(ResumeRefusal, OfAFolderWithLaterSteps) {
  EXPECT_THAT(ReasonOf([&] { PrepareFolder(folder_.path(), 2); }), HasSubstr("of step 4"));
  std::filesystem::create_directory(Step(6));
  WriteFile(Step(6) / "stage-0001-of-0002.part", "{}");
  PrepareFolder(folder_.path(), 4);
  EXPECT_FALSE(std::filesystem::exists(Step(6)));
  EXPECT_EQ(CompleteSteps(folder_.path()), (std::vector<int64_t>{2, 4}));
  WriteFile(folder_.path() / "file", "");
  EXPECT_THAT(ReasonOf([&] { PrepareFolder(folder_.path() / "file", 0); }), HasSubstr("is a file"));
}

TEST(CheckpointFile, HoldsGpt2AsHuggingFaceNamesIt) {
  const ScratchFolder folder;
  const Way way = Threads("2bw", 2, 4);
  const TrainingOptions options = For(way, "adamw", "weight-prediction");
  TrainFrom(way, options, {}, {.folder = folder.path()}, 3);
  const std::filesystem::path own = folder.path() / StepFolderName(3);
  const SafetensorsFile first(own / "stage-0001-of-0002.safetensors");
  const SafetensorsFile last(own / "stage-0002-of-0002.safetensors");
  const std::vector<int64_t> wide = {8, 24};
  EXPECT_EQ(first.At("transformer.h.0.attn.c_attn.weight").shape, wide);
  EXPECT_EQ(first.At("transformer.wte.weight").shape, (std::vector<int64_t>{128, 8}));
  EXPECT_EQ(first.At("transformer.wpe.weight").shape, (std::vector<int64_t>{4, 8}));
  EXPECT_EQ(last.At("transformer.h.7.mlp.c_proj.weight").shape, (std::vector<int64_t>{32, 8}));
  EXPECT_EQ(last.At("transformer.h.4.ln_1.bias").shape, (std::vector<int64_t>{8}));
  EXPECT_EQ(last.At("lm_head.weight").shape, (std::vector<int64_t>{128, 8}));
  EXPECT_EQ(last.At("version.0.lm_head.weight").size, last.At("lm_head.weight").size);
  EXPECT_EQ(last.At("version.1.lm_head.weight").size, last.At("lm_head.weight").size);
  EXPECT_EQ(last.At("optimizer.exp_avg.transformer.h.4.attn.c_attn.weight").shape,
            (std::vector<int64_t>{24, 8}));
  EXPECT_TRUE(last.tensors().contains("optimizer.correction_master.lm_head.weight"));
  const auto manifest = nlohmann::json::parse(ReadFile(own / kManifestName));
  EXPECT_EQ(manifest.at("step"), 3);
  EXPECT_EQ(manifest.at("samples"), 36);
  EXPECT_EQ(manifest.at("run").at("delay"), std::vector<int>(8, 1));
  EXPECT_EQ(manifest.at("files").size(), 2u);
  for (const auto& entry : std::filesystem::directory_iterator(own)) {
    EXPECT_NE(entry.path().extension(), ".part");
  }
}

TEST(CheckpointFile, StagesOfSeveralProcessesMeetInTheFolder) {
  const ScratchFolder folder;
  const TrainingOptions options = Options("adamw", "none", 3);
  const CheckpointSettings settings{.folder = folder.path(), .every = 1};
  std::vector<std::unique_ptr<CheckpointWriter>> writers;
  std::vector<std::jthread> threads;
  for (int stage = 0; stage < 3; ++stage) {
    writers.push_back(std::make_unique<CheckpointWriter>(
        settings, CheckpointFacts{"{}", "[]", 1, "any", 3}, std::vector<int>{2, 1, 0}, 0, 20));
    threads.emplace_back([&options, stage, &writer = *writers.back()] {
      const StageLayout layout(options.shape, options.split[static_cast<size_t>(stage)]);
      const auto optimizer = MakeOptimizer(options.optimizer, layout);
      std::vector<float> weights(static_cast<size_t>(layout.size()));
      writer.Begin(stage, 0, layout, weights.data());
      for (int64_t version = 1; version <= 20; ++version) {
        for (const StageTensor& place : layout.tensors()) {
          std::fill_n(weights.begin() + place.offset, place.elements(),
                      static_cast<float>(version));
        }
        writer.Updated(stage, version, *optimizer, weights.data());
      }
    });
  }
  threads.clear();
  for (int64_t step = 1; step <= 20; ++step) {
    const Checkpoint checkpoint(folder.path() / StepFolderName(step));
    for (int64_t stage = 0; stage < 3; ++stage) {
      const StageLayout layout(options.shape, options.split[static_cast<size_t>(stage)]);
      std::vector<float> weights(static_cast<size_t>(layout.size()));
      for (int64_t age = 0; age <= std::min(2 - stage, step); ++age) {
        checkpoint.ReadVersion(layout, age, weights.data());
        EXPECT_EQ(weights[0], static_cast<float>(step - age)) << stage;
      }
    }
    for (const auto& entry :
         std::filesystem::directory_iterator(folder.path() / StepFolderName(step))) {
      EXPECT_THAT(entry.path().extension(), testing::AnyOf(".safetensors", ".json"));
    }
  }
}

TEST(CheckpointFile, IsNeverWrittenOfWeightsThatAreNoNumbers) {
  for (const bool serial : {false, true}) {
    const ScratchFolder folder;
    Way way = Threads("2bw", 2, 4);
    way.serial = serial;
    TrainingOptions options = For(way, "sgd", "none");
    options.learning_rate.peak = 3e38f;
    options.learning_rate.warmup_updates = 0;
    const TrainingResult result =
        TrainFrom(way, options, {}, {.folder = folder.path(), .every = 1}, kSteps);
    ASSERT_TRUE(result.diverged.has_value());
    EXPECT_THAT(result.diverged_where,
                testing::AllOf(HasSubstr("stage "), HasSubstr("not finite")));
    for (const int64_t step : CompleteSteps(folder.path())) {
      const Checkpoint good(folder.path() / StepFolderName(step));
      for (const LayerRange& range : options.split) {
        const StageLayout layout(options.shape, range);
        std::vector<float> weights(static_cast<size_t>(layout.size()));
        good.ReadVersion(layout, 0, weights.data());
        EXPECT_EQ(FirstNotFinite(layout, weights.data()), "");
      }
    }
  }
}

TEST(Reports, ComeOncePerStepInOrderAndGoOn) {
  const ScratchFolder folder;
  for (const char* schedule : {"1f1b", "dualpipe", "2bw"}) {
    const bool clips = std::string(schedule) == "1f1b";
    const Way way = Threads(schedule, {.ranks = 2, .microbatches = 4, .norm = clips});
    std::map<bool, std::vector<StepReport>> reports;
    std::vector<double> losses;
    for (const bool serial : {false, true}) {
      Way one = way;
      one.serial = serial;
      TrainingOptions options = For(one, "adamw", "none");
      if (clips) options.clip_norm = 0.3;
      options.on_step = [&](const StepReport& report) { reports[serial].push_back(report); };
      losses = TrainFrom(one, options, {}, {}, 5).step_losses;
    }
    ASSERT_EQ(reports[false].size(), 5u);
    ASSERT_EQ(reports[true].size(), 5u);
    for (size_t i = 0; i < 5; ++i) {
      const StepReport& report = reports[false][i];
      EXPECT_EQ(report.steps_done, static_cast<int64_t>(i) + 1);
      EXPECT_DOUBLE_EQ(report.loss, losses[i]);
      EXPECT_EQ(report.learning_rate, reports[true][i].learning_rate);
      EXPECT_EQ(report.gradient_norm.has_value(), clips);
      EXPECT_EQ(report.gradient_norm, reports[true][i].gradient_norm);
    }
  }
}

}  // namespace
}  // namespace pipelag
