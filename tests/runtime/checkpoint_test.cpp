// What a checkpoint holds, when it is complete, and that whatever is damaged or does not fit a run
// is refused by name.
#include "runtime/checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "models/file.h"
#include "runtime/checkpoint/folder.h"
#include "runtime/device/train.h"
#include "tests/reason.h"
#include "tests/runtime/late_backend.h"
#include "tests/runtime/resumed_run.h"
#include "tests/runtime/scratch_folder.h"
#include "tests/runtime/socket_pairs.h"

namespace pipelag {
namespace {

using testing::HasSubstr;

/// A folder with the checkpoints of steps 2 and 4 of a run.
class ResumeRefusal : public testing::Test {
 protected:
  ResumeRefusal() : way_(Threads("2bw", 2, 4)) {
    TrainFrom(way_, For(way_, "adamw", "error-feedback"), {},
              {.folder = folder_.path(), .every = 2}, 4);
  }

  std::filesystem::path Step(int64_t step) const { return folder_.path() / StepFolderName(step); }

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
  constexpr int64_t kLast = kSanitized ? 5 : 20;
  const TrainingOptions options = Options("adamw", "none", 3);
  const CheckpointSettings settings{.folder = folder.path(), .every = 1};
  std::vector<std::unique_ptr<CheckpointWriter>> writers;
  std::vector<std::jthread> threads;
  for (int stage = 0; stage < 3; ++stage) {
    writers.push_back(
        std::make_unique<CheckpointWriter>(settings, CheckpointFacts{"{}", "[]", 1, "any", 3, 1},
                                           std::vector<int>{2, 1, 0}, 0, kLast));
    threads.emplace_back([&options, stage, &writer = *writers.back()] {
      const StageLayout layout(options.shape, options.split[static_cast<size_t>(stage)]);
      const auto optimizer = MakeOptimizer(options.optimizer, layout);
      std::vector<float> weights(static_cast<size_t>(layout.size()));
      writer.Begin(stage, 0, layout, weights.data());
      for (int64_t version = 1; version <= kLast; ++version) {
        for (const StageTensor& place : layout.tensors()) {
          std::fill_n(weights.begin() + place.offset, place.elements(),
                      static_cast<float>(version));
        }
        writer.Updated(stage, version, *optimizer, weights.data());
        writer.Reported(version, {});
      }
    });
  }
  threads.clear();
  for (int64_t step = 1; step <= kLast; ++step) {
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

/// Whose batch would show it only later: it is said to be of the update.
TEST(CheckpointFile, OfWeightsThatAreNoNumbersNamesTheUpdate) {
  const ScratchFolder folder;
  const TrainingOptions options = For(Threads("1f1b", 2, 4), "sgd", "none");
  const StageLayout layout(options.shape, options.split[1]);
  const auto optimizer = MakeOptimizer(options.optimizer, layout);
  std::vector<float> weights(static_cast<size_t>(layout.size()), 1);
  weights[static_cast<size_t>(layout.Find("ln_f.bias").offset)] = NAN;
  CheckpointWriter writer({.folder = folder.path(), .every = 2}, {}, {0, 0}, 3, 9);
  writer.Updated(1, 5, *optimizer, weights.data());  // not due
  try {
    writer.Updated(1, 6, *optimizer, weights.data());
    FAIL() << "was written";
  } catch (const Diverged& diverged) {
    EXPECT_EQ(diverged.step, 2);  // of the run, the first being 0
    EXPECT_EQ(diverged.where, "stage 1: ln_f.bias is not finite after the update");
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

// A log then has whatever a run that goes on from the checkpoint does not do again.
TEST(Reports, ComeBeforeTheCheckpointOfTheirStepIsComplete) {
  const auto on_processes = [](const Program& program, const TrainingOptions& options) {
    return TrainOnSocketPairs(program, options, TestCorpus());
  };
  LateBackend backend(2, 4);
  const auto on_gpus = [&backend](const Program& program, const TrainingOptions& options) {
    const DeviceRun run{StagePrecision::kFloat32, DeviceTransport::kLocal};
    return TrainOnThreads(program, options, TestCorpus(), OnDevices(backend, run), {});
  };
  for (const char* schedule : {"1f1b", "2bw", "pipedream", "dualpipe"}) {
    for (const char* run : {"serial", "threads", "processes", "gpus"}) {
      const ScratchFolder folder;
      Way way = Threads(schedule, 2, 4);
      way.serial = std::string_view(run) == "serial";
      if (std::string_view(run) == "processes") way.run = on_processes;
      if (std::string_view(run) == "gpus") way.run = on_gpus;
      TrainingOptions options = For(way, "sgd", "none");
      int64_t reports = 0;
      options.on_step = [&](const StepReport& report) {
        EXPECT_EQ(report.steps_done, ++reports);
        if (reports != 3) return;
        const auto own = folder.path() / StepFolderName(report.steps_done);
        const auto there = [&](const char* name) { return std::filesystem::exists(own / name); };
        const auto wait = [&](int most, const auto& ready) {
          for (int i = 0; i < most && !ready() && !there(kManifestName); ++i) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
          }
        };
        // Until the other stage has come to it, and a while in which it could be the last to come.
        wait(1000, [&] { return there("stage-0001-of-0002.part"); });
        wait(20, [] { return false; });
        EXPECT_FALSE(there(kManifestName)) << schedule << ", " << run;
      };
      const std::vector<double> losses =
          TrainFrom(way, options, {}, {.folder = folder.path(), .every = 1}, kSteps).step_losses;
      EXPECT_EQ(reports, kSteps) << schedule << ", " << run;
      for (const int64_t step : {2, 6}) {
        const std::vector<double> latest =
            Checkpoint(folder.path() / StepFolderName(step)).LatestLosses();
        ASSERT_EQ(latest.size(), static_cast<size_t>(std::min<int64_t>(step, kLossWindow - 1)));
        for (size_t i = 0; i < latest.size(); ++i) {
          const auto at = static_cast<size_t>(step) - latest.size() + i;
          EXPECT_DOUBLE_EQ(latest[i], losses[at]) << schedule << ", " << run;
        }
      }
      EXPECT_EQ(CompleteSteps(folder.path()).size(), static_cast<size_t>(kSteps));
    }
  }
}

}  // namespace
}  // namespace pipelag
