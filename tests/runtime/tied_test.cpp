// A head tied to the token embedding: its gradient against finite differences, both holders against
// each other and against one holder alone, over every schedule and transport; and where it is
// counted.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>

#include "models/schedule/generators.h"
#include "models/update_time.h"
#include "runtime/checkpoint/folder.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/checkpoint/weight_file.h"
#include "runtime/data/sampler.h"
#include "runtime/delay_profile.h"
#include "runtime/optimizer/norm.h"
#include "tests/runtime/every_schedule.h"
#include "tests/runtime/fake_device.h"
#include "tests/runtime/network_kinds.h"
#include "tests/runtime/resumed_run.h"
#include "tests/runtime/scratch_folder.h"
#include "tests/runtime/socket_pairs.h"
#include "tests/runtime/stage_chain.h"
#include "tests/runtime/synchronous_transport.h"

namespace pipelag {
namespace {

using testing::HasSubstr;

constexpr int kMostRanks = 4;
constexpr int64_t kFewSteps = 4;

NetworkShape Tied(NetworkShape shape) {
  shape.tied = true;
  return shape;
}

std::string ReasonOf(const std::function<void()>& make) {
  try {
    make();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(TiedLayout, HoldsTheTensorOnceOrACopyOfIt) {
  for (const NetworkShape& shape : AllKinds(Tiny())) {
    const NetworkShape tied = Tied(shape);
    const int64_t table = int64_t{shape.vocabulary} * shape.hidden;
    EXPECT_EQ(NetworkParameters(tied), NetworkParameters(shape) - table);
    EXPECT_EQ(TensorCount(tied), TensorCount(shape) - 1);
    const StageLayout whole(tied, {0, 2});
    EXPECT_TRUE(whole.joins());
    EXPECT_EQ(whole.tied(), &whole.tensors().front());
    EXPECT_EQ(whole.gradient_size(), whole.size() + table);
    EXPECT_EQ(static_cast<int>(whole.tensors().size()), TensorCount(tied));
    const StageLayout first(tied, {0, 1});
    const StageLayout last(tied, {1, 2});
    EXPECT_EQ(first.tied(), &first.tensors().front());
    EXPECT_EQ(last.tied(), &last.tensors().back());
    EXPECT_EQ(last.tied()->name, first.tied()->name);
    EXPECT_EQ(last.tied()->global_index, 0);
    EXPECT_EQ(last.tied()->role, TensorRole::kEmbedding);
    EXPECT_TRUE(last.tied()->copy);
    for (const StageLayout& layout : {first, last}) {
      EXPECT_FALSE(layout.joins());
      EXPECT_EQ(layout.gradient_size(), layout.size());
    }
    int64_t parameters = 0;
    for (const StageTensor& tensor : whole.tensors()) parameters += tensor.elements();
    EXPECT_EQ(parameters, NetworkParameters(tied));
  }
  EXPECT_EQ(StageLayout(Tiny(), {0, 2}).tied(), nullptr);
}

class TiedGradient : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Stages, TiedGradient, testing::Values(1, 2));

/// Every element of the one matrix, moved wherever it is held.
TEST_P(TiedGradient, AgreesWithFiniteDifferences) {
  for (const NetworkShape& shape : {Tied(Tiny()), Tied(Llama(Tiny()))}) {
    constexpr int kBatch = 2;
    StageChain<double> chain(shape, GetParam(), kBatch);
    Shake(chain, 0.4);
    const auto tokens = RandomTokens(shape, kBatch, 5);
    const auto targets = RandomTokens(shape, kBatch, 6);
    const double scale = 1.0 / static_cast<double>(tokens.size());
    chain.Forward(tokens.data(), targets.data());
    chain.Backward(tokens.data(), targets.data(), scale);
    const StageTensor& first = *chain.networks.front().layout().tied();
    const StageTensor& last = *chain.networks.back().layout().tied();
    JoinTied(chain.networks.front().layout(), chain.gradients.front().data());
    for (int64_t i = 0; i < first.elements(); ++i) {
      double* lookup = chain.weights.front().data() + first.offset + i;
      double* head = chain.weights.back().data() + last.offset + i;
      double gradient = chain.gradients.front()[static_cast<size_t>(first.offset + i)];
      if (lookup != head) gradient += chain.gradients.back()[static_cast<size_t>(last.offset + i)];
      const double centre = *lookup;
      const auto difference = [&](double h) {
        *lookup = *head = centre + h;
        const double above = chain.Forward(tokens.data(), targets.data());
        *lookup = *head = centre - h;
        const double below = chain.Forward(tokens.data(), targets.data());
        *lookup = *head = centre;
        return scale * (above - below) / (2 * h);
      };
      constexpr double h = 1e-3;
      const double expected = (4 * difference(h / 2) - difference(h)) / 3;
      ASSERT_NEAR(gradient, expected, 1e-7 * std::max(1e-2, std::fabs(expected))) << i;
    }
  }
}

/// What is combined: one of each in every run, so that pairs meet over the schedules and ranks.
struct Mix {
  const char* optimizer;
  const char* correction;
  std::optional<double> clip;
  Recompute recompute;
  bool uneven;
};

constexpr std::array<Mix, 6> kMixes = {
    {{"sgd", "none", std::nullopt, Recompute::kNone, true},
     {"adamw", "error-feedback", 0.3, Recompute::kSelective, false},
     {"muon", "none", 0.3, Recompute::kFull, true},
     {"lion", "error-feedback", std::nullopt, Recompute::kFull, false},
     {"sgd", "error-feedback", 0.3, Recompute::kNone, false},
     {"muon", "error-feedback", std::nullopt, Recompute::kSelective, true}}};

TrainingOptions OptionsOf(const Mix& mix, int stages) {
  TrainingOptions options = Options(mix.optimizer, mix.correction, stages);
  options.shape = Tied(options.shape);
  options.shape.layers = 9;
  options.split = SplitLayers(options.shape.layers, stages);
  if (mix.uneven && stages > 1 && stages < 9) {
    std::vector<int> counts(static_cast<size_t>(stages), 1);
    counts[static_cast<size_t>(stages) / 2] += 9 - stages;
    options.split = SplitLayers(options.shape.layers, counts);
  }
  options.clip_norm = mix.clip;
  options.recompute = mix.recompute;
  return options;
}

TrainingResult Synchronously(const Program& program, const TrainingOptions& options) {
  std::vector<std::unique_ptr<SynchronousTransport>> transports;
  return TrainOnThreads(program, options, TestCorpus(), [&](int, RankBackend inner, RunControl&) {
    transports.push_back(std::make_unique<SynchronousTransport>(*inner.transport));
    return RankBackend{inner.compute, transports.back().get()};
  });
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

/// Over every transport; returns the digest.
std::string Agreed(const Program& program, const TrainingOptions& options) {
  const TrainingResult serial = TrainSerially(PlanOf(program), options, TestCorpus());
  EXPECT_FALSE(serial.diverged);
  const TrainingResult threads = TrainOnThreads(program, options, TestCorpus());
  EXPECT_EQ(threads.weights_sha256, serial.weights_sha256);
  EXPECT_EQ(threads.step_losses, serial.step_losses);
  EXPECT_EQ(threads.validation_loss, serial.validation_loss);
  EXPECT_EQ(TrainOnSocketPairs(program, options, TestCorpus()).weights_sha256,
            serial.weights_sha256);
  EXPECT_EQ(Synchronously(program, options).weights_sha256, serial.weights_sha256);
  return serial.weights_sha256;
}

class Tieing : public testing::TestWithParam<std::string> {};

TEST_P(Tieing, EqualsTheSerialReferenceWhateverGoesWithIt) {
  const std::string& schedule = GetParam();
  const bool plain = schedule == "gpipe" || schedule == "1f1b" || schedule == "interleaved-1f1b";
  for (int ranks = 1; ranks <= kMostRanks; ++ranks) {
    const GeneratorOptions sizes{.ranks = ranks, .microbatches = kMicrobatches, .tied = true};
    if (schedule == "pipedream" || schedule == "paci") {
      EXPECT_THAT(ReasonOf([&] { Generate(schedule, sizes); }), HasSubstr("a tied embedding"));
      continue;
    }
    if (schedule == "dualpipe" && ranks % 2 != 0) continue;
    for (size_t k = 0; k < kMixes.size(); ++k) {
      // Every mix on every other number of ranks.
      if ((k + static_cast<size_t>(ranks)) % 2 == 1) continue;
      if (kSanitized && k != static_cast<size_t>(ranks)) continue;
      SCOPED_TRACE(fmt::format("{} ranks, mix {}", ranks, k));
      GeneratorOptions own = sizes;
      own.norm = kMixes[k].clip.has_value();
      const Program program(Generate(schedule, own), kFewSteps);
      const TrainingOptions options = OptionsOf(kMixes[k], program.schedule().stages);
      const std::string digest = Agreed(program, options);
      if (!plain) continue;
      // One stage, one tensor, no exchange.
      EXPECT_EQ(digest, TrainSerially(PlanOfDelays({0}, 1, kMicrobatches, kFewSteps),
                                      OptionsOf(kMixes[k], 1), TestCorpus())
                            .weights_sha256);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, Tieing, testing::ValuesIn(EverySchedule()),
                         [](const auto& parameter) { return CaseName(parameter.param); });

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
    const Program program(Generate(name, options), 2 * kFewSteps);
    TrainingOptions training =
        OptionsOf({"adamw", "error-feedback", std::nullopt, Recompute::kNone, true},
                  program.schedule().stages);
    if (options.norm) training.clip_norm = 0.3;
    const std::string digest = Agreed(program, training);
    EXPECT_EQ(Late(program, training).weights_sha256, digest);
  }
}

TEST(TieingOf, BothHoldersAgreeAfterAHundredSteps) {
  const int64_t steps = kSanitized ? 30 : 100;
  for (const char* schedule : {"1f1b", "2bw", "zb-v"}) {
    const Program program(
        Generate(schedule, {.ranks = 2, .microbatches = 4, .norm = true, .tied = true}), steps);
    const int stages = program.schedule().stages;
    TrainingOptions options = OptionsOf(kMixes[1], stages);
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
    for (int ranks = 1; ranks <= kMostRanks; ++ranks) {
      SCOPED_TRACE(fmt::format("{}, {} ranks", schedule, ranks));
      const Program program(
          Generate(schedule,
                   {.ranks = ranks, .microbatches = kMicrobatches, .norm = true, .tied = true}),
          2);
      TrainingOptions options = OptionsOf(kMixes[2], program.schedule().stages);
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

TEST(TieingOf, RefusalsOfWhatWouldNotBeOneTensor) {
  // Both ways round: a schedule without the exchange, an exchange of nothing.
  const TrainingOptions tied = OptionsOf(kMixes[0], 2);
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

TEST(TieingOf, CheckpointsHoldItOnceAndGoOnAnywhere) {
  const auto way = [](const std::string& schedule, int ranks) {
    return Threads(schedule, {.ranks = ranks, .microbatches = kMicrobatches, .tied = true});
  };
  const auto tied = [](const Way& one, const std::string& optimizer) {
    TrainingOptions options = For(one, optimizer, "none");
    options.shape.tied = true;
    return options;
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

TEST(TieingOf, WeightFilesHoldItOnce) {
  constexpr NetworkShape kShape{
      .layers = 2, .hidden = 4, .heads = 2, .sequence = 3, .vocabulary = 130, .tied = true};
  const ScratchFolder folder;
  const auto drawn = [&](const NetworkShape& shape, int stages) {
    StageChain<float> chain(shape, stages, 1, 5);
    std::vector<StageWeights> views;
    for (size_t s = 0; s < chain.networks.size(); ++s) {
      views.push_back({&chain.networks[s].layout(), chain.weights[s].data()});
    }
    for (const char* name : {"one.bin", "one.safetensors"}) {
      ExportWeights(folder.path() / name, shape, views);
    }
    return WeightsSha256(views);
  };
  for (const int stages : {1, 2}) {
    const std::string digest = drawn(kShape, stages);
    const SafetensorsFile file(folder.path() / "one.safetensors");
    EXPECT_FALSE(file.tensors().contains("lm_head.weight"));
    EXPECT_EQ(static_cast<int>(file.tensors().size()), TensorCount(kShape));
    for (const char* name : {"one.bin", "one.safetensors"}) {
      for (const int again : {1, 2}) {
        const auto start = OpenWeights(folder.path() / name, kShape);
        StageChain<float> chain(kShape, again, 1);
        std::vector<StageWeights> views;
        for (size_t s = 0; s < chain.networks.size(); ++s) {
          start->ReadVersion(chain.networks[s].layout(), 0, chain.weights[s].data());
          views.push_back({&chain.networks[s].layout(), chain.weights[s].data()});
        }
        EXPECT_EQ(WeightsSha256(views), digest) << name;
        const StageLayout& last = chain.networks.back().layout();
        EXPECT_EQ(std::memcmp(chain.weights.back().data() + last.tied()->offset,
                              chain.weights.front().data(),
                              static_cast<size_t>(last.tied()->elements()) * sizeof(float)),
                  0);
      }
    }
  }
  // A file with a head: the same again, or another one.
  NetworkShape untied = kShape;
  untied.tied = false;
  StageChain<float> chain(untied, 1, 1, 5);
  const StageLayout& layout = chain.networks[0].layout();
  float* head = chain.weights[0].data() + layout.Find("lm_head.weight").offset;
  std::copy_n(chain.weights[0].data(), 130 * 4, head);
  const std::filesystem::path file = folder.path() / "head.safetensors";
  ExportWeights(file, untied, {{&layout, chain.weights[0].data()}});
  EXPECT_EQ(ReasonOf([&] { OpenWeights(file, kShape); }), "");
  head[3] += 1;
  ExportWeights(file, untied, {{&layout, chain.weights[0].data()}});
  EXPECT_THAT(ReasonOf([&] { OpenWeights(file, kShape); }), HasSubstr("holds a head of its own"));
}

}  // namespace
}  // namespace pipelag
