// Training with a head tied to the token embedding: both holders stay one tensor, counted once in
// the norm and in checkpoints, on devices that are late too; what would make two of it is refused.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "models/schedule/generators.h"
#include "runtime/checkpoint/folder.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/data/sampler.h"
#include "runtime/delay_profile.h"
#include "runtime/optimizer/norm.h"
#include "tests/runtime/agreed.h"
#include "tests/runtime/fake_device.h"
#include "tests/runtime/resumed_run.h"
#include "tests/runtime/scratch_folder.h"
#include "tests/runtime/stage_chain.h"

namespace pipelag {
namespace {

using testing::HasSubstr;

TrainingOptions OfTied(const std::string& optimizer, const std::string& correction, int stages) {
  TrainingOptions options = Options(optimizer, correction, stages);
  options.shape.tied = true;
  return options;
}

TrainingResult Late(const Program& program, const TrainingOptions& options) {
  std::vector<std::unique_ptr<FakeDevice>> devices;
  return TrainOnThreads(
      program, options, TestCorpus(), [&](int rank, RankBackend inner, RunControl& control) {
        devices.push_back(
            std::make_unique<FakeDevice>(inner, control, 31 * static_cast<uint64_t>(rank)));
        return RankBackend{devices.back().get(), devices.back().get()};
      });
}

TEST(TieingOf, VariantsOfSchedulesOnDevicesThatAreLate) {
  const int m = kMicrobatches;
  const std::vector<std::pair<std::string, GeneratorOptions>> variants = {
      {"1f1b", {.ranks = 3, .microbatches = m, .norm = true, .barrier = true, .tied = true}},
      {"dualpipe", {.ranks = 2, .microbatches = m, .norm = true, .tied = true}},
      {"zb-auto", {.ranks = 2, .microbatches = m, .norm = true, .tied = true, .chunks = 1}},
      {"2bw", {.ranks = 4, .microbatches = 8, .warmup_slope = 2, .tied = true}},
      {"2bw", {.ranks = 4, .microbatches = 8, .norm = true, .tied = true}},
      {"2bw", {.ranks = 3, .microbatches = 8, .norm = true, .tied = true, .body = "zb-h1"}},
      {"2bw", {.ranks = 3, .microbatches = 8, .norm = true, .tied = true, .body = "zb-v"}},
      {"2bw", {.ranks = 2, .microbatches = 4, .norm = true, .tied = true, .chunks = 2}},
      {"2bw", {.ranks = 3, .microbatches = 6, .norm = true, .tied = true, .late_update = false}},
      {"2bw", {.ranks = 3, .microbatches = 6, .tied = true, .late_update = false}},
  };
  for (const auto& [name, options] : variants) {
    if (kSanitized && options.ranks > 2) continue;  // instrumented threads are slow
    SCOPED_TRACE(fmt::format("{}, {} ranks, {}", name, options.ranks, options.body));
    const Program program(Generate(name, options), kSteps);
    TrainingOptions training = OfTied("adamw", "error-feedback", program.schedule().stages);
    if (options.norm) training.clip_norm = 0.3;
    const std::string digest = Agreed(program, training, TestCorpus()).weights_sha256;
    EXPECT_EQ(Late(program, training).weights_sha256, digest);
  }
}

TEST(TieingOf, BothHoldersAgreeAfterAHundredSteps) {
  const int64_t steps = kSanitized ? 30 : 100;
  for (const char* schedule : {"1f1b", "2bw", "zb-v"}) {
    const Program program(
        Generate(schedule, {.ranks = 2, .microbatches = 4, .norm = true, .tied = true}), steps);
    const int stages = program.schedule().stages;
    TrainingOptions options = OfTied("adamw", "error-feedback", stages);
    options.clip_norm = 0.3;
    options.learning_rate.total_updates = steps;
    std::vector<float> moved;
    const auto look = [&](const std::vector<StageWeights>& weights) {
      const StageLayout& first = *weights.front().layout;
      const StageLayout& last = *weights.back().layout;
      ASSERT_EQ(weights.size(), static_cast<size_t>(stages));
      const float* lookups = weights.front().weights + first.tied()->offset;
      const float* heads = weights.back().weights + last.tied()->offset;
      const auto elements = static_cast<size_t>(first.tied()->elements());
      EXPECT_EQ(std::memcmp(lookups, heads, elements * sizeof(float)), 0);
      moved.assign(lookups, lookups + elements);
    };
    options.on_final_weights = look;
    const TrainingResult threads = TrainOnThreads(program, options, TestCorpus());
    const std::vector<float> of_threads = moved;
    const TrainingResult serial = TrainSerially(PlanOf(program), options, TestCorpus());
    EXPECT_EQ(threads.weights_sha256, serial.weights_sha256);
    EXPECT_EQ(of_threads, moved);
    EXPECT_LT(threads.final_loss(), threads.step_losses.front());
    // As both holders drew it at first, it would not be.
    std::vector<float> drawn(
        static_cast<size_t>(StageLayout(options.shape, options.split.front()).size()));
    InitialiseWeights(StageLayout(options.shape, options.split.front()), options.shape,
                      options.seed, drawn.data());
    drawn.resize(moved.size());
    EXPECT_NE(moved, drawn);
  }
}

/// Of the first step: one network, one gradient, each tensor once.
double NormByHand(const TrainingOptions& options, int microbatches) {
  StageChain<float> chain(options.shape, 1, options.microbatch_size, options.seed);
  const auto size = static_cast<size_t>(TokensPerStep(options, 1));
  std::vector<Token> tokens(size);
  std::vector<Token> targets(size);
  const auto scale =
      static_cast<float>(1.0 / static_cast<double>(TokensPerStep(options, microbatches)));
  for (int i = 0; i < microbatches; ++i) {
    FillMicrobatch(TestCorpus(), options.seed, i, options.microbatch_size, options.shape.sequence,
                   tokens.data(), targets.data());
    chain.Forward(tokens.data(), targets.data());
    chain.Backward(tokens.data(), targets.data(), scale);
  }
  const StageLayout& layout = chain.networks[0].layout();
  float* gradients = chain.gradients[0].data();
  for (int64_t i = 0; i < layout.tied()->elements(); ++i) {
    gradients[layout.tied()->offset + i] += gradients[layout.size() + i];
  }
  double sum = 0;
  for (const StageTensor& tensor : layout.tensors()) {
    sum += SquaredNorm(tensor.elements(), gradients + tensor.offset);
  }
  return std::sqrt(sum);
}

TEST(TieingOf, CountsOnceInTheNorm) {
  for (const char* schedule : {"gpipe", "1f1b", "interleaved-1f1b", "2bw"}) {
    for (int ranks = 1; ranks <= 4; ++ranks) {
      SCOPED_TRACE(fmt::format("{}, {} ranks", schedule, ranks));
      const Program program(
          Generate(schedule,
                   {.ranks = ranks, .microbatches = kMicrobatches, .norm = true, .tied = true}),
          2);
      TrainingOptions options = OfTied("muon", "none", program.schedule().stages);
      options.clip_norm = 0.3;
      std::vector<double> norms;
      options.on_step = [&](const StepReport& report) { norms.push_back(*report.gradient_norm); };
      TrainOnThreads(program, options, TestCorpus());
      ASSERT_EQ(norms.size(), 2U);
      EXPECT_EQ(norms.front(), NormByHand(options, kMicrobatches));
      const std::vector<double> of_threads = std::exchange(norms, {});
      TrainSerially(PlanOf(program), options, TestCorpus());
      EXPECT_EQ(norms, of_threads);
    }
  }
}

TEST(TieingOf, CheckpointsHoldItOnceAndGoOnAnywhere) {
  const auto way = [](const std::string& schedule, int ranks) {
    return Threads(schedule, {.ranks = ranks, .microbatches = kMicrobatches, .tied = true});
  };
  const auto tied = [](const Way& one, const std::string& optimizer) {
    return OfTied(optimizer, "none", static_cast<int>(one.plan.stages.size()));
  };
  const auto goes_on = [&](const Way& before, const Way& after, const std::string& optimizer) {
    const ScratchFolder folder;
    const TrainingResult whole = TrainFrom(before, tied(before, optimizer), {},
                                           {.folder = folder.path(), .every = 1}, kSteps);
    for (const int64_t stop : {1, 4}) {
      EXPECT_EQ(
          TrainFrom(after, tied(after, optimizer), folder.path() / StepFolderName(stop), {}, kSteps)
              .weights_sha256,
          whole.weights_sha256)
          << stop;
    }
    int tables = 0;
    const std::filesystem::path last = folder.path() / StepFolderName(kSteps);
    for (const auto& file : std::filesystem::directory_iterator(last)) {
      if (file.path().extension() != ".safetensors") continue;
      const SafetensorsFile read(file.path());
      EXPECT_FALSE(read.tensors().contains("lm_head.weight"));
      tables += static_cast<int>(read.tensors().count("transformer.wte.weight"));
    }
    EXPECT_EQ(tables, 1);
  };
  goes_on(way("gpipe", 2), way("interleaved-1f1b", 4), "adamw");
  goes_on(way("1f1b", 4), ByHand({0}, 1), "muon");
  goes_on(ByHand({0}, 1), way("1f1b", 3), "soap");
  goes_on(way("2bw", 1), way("2bw", 4), "adamw");
  goes_on(way("2bw", 4), ByHand({1}, 2), "sgd");
  goes_on(way("dualpipe", 2), way("dualpipe", 2), "adamw");
  // Not with a head of its own.
  const ScratchFolder folder;
  const Way plain = way("gpipe", 2);
  TrainFrom(plain, tied(plain, "sgd"), {}, {.folder = folder.path()}, kSteps);
  const Way own = Threads("gpipe", 2);
  EXPECT_THAT(ReasonOf([&] { TrainFrom(own, For(own, "sgd", "none"), folder.path(), {}, 9); }),
              HasSubstr("/network/tied is true there, but absent here"));
}

TEST(TieingOf, RefusalsOfWhatWouldNotBeOneTensor) {
  // Both ways round: a schedule without the exchange, an exchange of nothing.
  const TrainingOptions tied = OfTied("sgd", "none", 2);
  TrainingOptions untied = tied;
  untied.shape.tied = false;
  const Program with(Generate("1f1b", {.ranks = 2, .microbatches = 2, .tied = true}), 2);
  const Program without(Generate("1f1b", {.ranks = 2, .microbatches = 2}), 2);
  EXPECT_THAT(ReasonOf([&] { TrainOnThreads(without, tied, TestCorpus()); }),
              HasSubstr("do not exchange the gradients of the tied embedding (--tied)"));
  EXPECT_THAT(ReasonOf([&] { TrainOnThreads(with, untied, TestCorpus()); }),
              HasSubstr("the network's head is its own"));
  // Delays by hand, and by a schedule that cannot wait.
  EXPECT_THAT(ReasonOf([&] {
                TrainSerially(PlanOfDelays({1, 0}, 2, 2, 2), tied, TestCorpus());
              }),
              HasSubstr("cannot be late by different numbers of updates"));
  EXPECT_EQ(ReasonOf([&] { TrainSerially(PlanOfDelays({3}, 2, 2, 2), tied, TestCorpus()); }), "");
  for (const char* profile : {"pipedream@2x1", "paci@2x1"}) {
    EXPECT_THAT(
        ReasonOf([&] { MakeProfile(profile, {.stages = 2, .microbatches = 2, .tied = true}); }),
        HasSubstr("tied embedding"));
  }
  // Vertical sync would have the same delay everywhere, but not the time.
  EXPECT_THAT(ReasonOf([&] {
                Generate("pipedream",
                         {.ranks = 2, .microbatches = 2, .tied = true, .vertical_sync = true});
              }),
              HasSubstr("a tied embedding"));
  // The exchange of copies comes before that between first and last stage, the norm after it.
  Schedule copies =
      Generate("dualpipe", {.ranks = 2, .microbatches = 4, .norm = true, .tied = true});
  const auto swapped = [&](size_t from_end) {
    Schedule schedule = copies;
    for (auto& body : schedule.body) {
      auto first = std::find_if(body.begin(), body.end(), [](const Action& action) {
        return action.kind == ActionKind::kAllReduce;
      });
      // weights, weights, shared, norm on either rank.
      std::iter_swap(first + static_cast<std::ptrdiff_t>(from_end),
                     first + static_cast<std::ptrdiff_t>(from_end) + 1);
    }
    return ReasonOf([&] { PlanOf(Program(schedule, 2)); });
  };
  EXPECT_EQ(swapped(0), "");
  EXPECT_THAT(swapped(1), HasSubstr("shared tensor are exchanged before their copies are added"));
  EXPECT_THAT(swapped(2), HasSubstr("norm of gradients is taken before those of a shared tensor"));
}

}  // namespace
}  // namespace pipelag
