// Going on from a checkpoint is going on with the run that left it: to the last bit, over every
// schedule, number of ranks, optimizer and correction.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "models/schedule/replicate.h"
#include "runtime/checkpoint/folder.h"
#include "tests/runtime/every_schedule.h"
#include "tests/runtime/resumed_run.h"
#include "tests/runtime/scratch_folder.h"

namespace pipelag {
namespace {

/// Trains `before` up to each of some steps, goes on with `after` from there, and holds it against
/// `before` left alone.
void ExpectGoesOn(const Way& before, const Way& after, const std::string& optimizer,
                  const std::string& correction, std::vector<int64_t> stops) {
  SCOPED_TRACE(optimizer + ", " + correction);
  if (kSanitized) stops.resize(1);  // slow, and from where it goes on is the same to threads
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

INSTANTIATE_TEST_SUITE_P(Schedules, Resume, testing::ValuesIn(EverySchedule()),
                         [](const auto& parameter) { return CaseName(parameter.param); });

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
    if (ranks % 2 == 0 || kSanitized) continue;
    ExpectGoesOn(*way, Serially(*way), "sgd", "none", {3});
    ExpectGoesOn(Serially(*way), *way, "muon", "error-feedback", {2});
  }
}

Way Replicated(const std::string& schedule, GeneratorOptions options, int replicas) {
  options.reduction = true;
  Program program(Replicate(Generate(schedule, options), replicas), kSteps);
  SerialPlan plan = PlanOf(program);
  return {std::move(program), std::move(plan), false};
}

TEST(ResumeOf, ReplicasGoOnToTheLastBit) {
  for (const char* schedule : {"1f1b", "2bw", "pipedream", "zb-v", "dualpipe"}) {
    SCOPED_TRACE(schedule);
    const Way way = Replicated(schedule, {.ranks = 2, .microbatches = 6}, 2);
    ExpectGoesOn(way, way, "adamw", "error-feedback", {1, 4});
    ExpectGoesOn(Serially(way), way, "muon", "none", {2});
  }
  const Way two = Replicated("1f1b", {.ranks = 2, .microbatches = 6}, 2);
  ExpectGoesOn(two, Replicated("gpipe", {.ranks = 3, .microbatches = 6}, 2), "adamw", "none", {3});
}

// The batch is the same, but for the order in which its gradients are added.
TEST(ResumeOf, AnotherNumberOfReplicasGoesOnWithTheSameBatchButForRounding) {
  const ScratchFolder folder;
  const Way two = Replicated("1f1b", {.ranks = 2, .microbatches = 6}, 2);
  const Way three = Replicated("1f1b", {.ranks = 2, .microbatches = 4}, 3);
  const TrainingOptions options = For(two, "sgd", "none");
  const TrainingResult whole =
      TrainFrom(two, options, {}, {.folder = folder.path(), .every = 3}, kSteps);
  const std::filesystem::path middle = folder.path() / StepFolderName(3);
  const TrainingResult rest = TrainFrom(three, options, middle, {}, kSteps);
  EXPECT_NE(rest.weights_sha256, whole.weights_sha256);
  EXPECT_NEAR(rest.validation_loss, whole.validation_loss, 1e-5);
  EXPECT_EQ(rest.step_losses[0], whole.step_losses[3]);
  EXPECT_FALSE(Checkpoint(middle).AddsLike(SummationOf(options, three.plan).dump()));
  // Copies before replicas is no order of four replicas.
  const Way dual = Replicated("dualpipe", {.ranks = 2, .microbatches = 6}, 2);
  const Way four = Replicated("gpipe", {.ranks = 2, .microbatches = 3}, 4);
  EXPECT_NE(SummationOf(options, dual.plan), SummationOf(options, four.plan));
  const Way other = Replicated("1f1b", {.ranks = 2, .microbatches = 6}, 3);
  EXPECT_THROW(TrainFrom(other, options, middle, {}, kSteps), Error);
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

TEST(ResumeOf, CopiesOfWhichOneRunsAhead) {
  using Kind = ActionKind;
  const auto made = [](Kind kind, int stage, int microbatch) {
    return Action{microbatch, static_cast<uint16_t>(stage), kind, false};
  };
  Schedule schedule;
  schedule.name = "held twice";
  schedule.ranks = 2;
  schedule.stages = 1;
  schedule.streams = 2;
  schedule.microbatches = 2;
  schedule.policy = WeightPolicy::kStashed;
  schedule.placement = {0, 1};
  schedule.groups = {{CollectiveGroup::Purpose::kWeights, {0, 1}}};
  schedule.body = {{made(Kind::kForward, 0, 0), made(Kind::kBackward, 0, 0),
                    made(Kind::kAllReduce, 0, 0), made(Kind::kUpdate, 0, 0)},
                   {made(Kind::kForward, 1, 3), made(Kind::kBackward, 1, 1),
                    made(Kind::kAllReduce, 0, 0), made(Kind::kUpdate, 1, 0)}};
  Program program(schedule, kSteps);
  SerialPlan plan = PlanOf(program);
  const Way way{std::move(program), std::move(plan), false};
  ExpectGoesOn(way, way, "adamw", "error-feedback", {1, 2, 5});
  ExpectGoesOn(way, Serially(way), "adamw", "error-feedback", {3});
  // Stopped and gone on twice, the second time one step later.
  const ScratchFolder folder;
  const TrainingOptions options = For(way, "adamw", "none");
  const TrainingResult whole = TrainFrom(way, options, {}, {.folder = folder.path()}, 3);
  ASSERT_FALSE(whole.diverged);
  TrainFrom(way, options, folder.path(), {.folder = folder.path(), .every = 1}, kSteps);
  EXPECT_EQ(TrainFrom(way, options, folder.path() / StepFolderName(4), {}, kSteps).weights_sha256,
            TrainFrom(way, options, {}, {}, kSteps).weights_sha256);
}

TEST(ResumeOf, EveryOptimizerAndCorrection) {
  const Way bw = Threads("2bw", 2, 2);
  // Under sanitizers everything is slow, and what updates the weights is none of their business.
  const std::vector<std::string> optimizers =
      kSanitized ? std::vector<std::string>{"normuon"} : OptimizerNames();
  const std::vector<std::string> corrections =
      kSanitized ? std::vector<std::string>{"weight-prediction"} : CorrectionNames();
  for (const std::string& optimizer : optimizers) {
    ExpectGoesOn(bw, bw, optimizer, "none", {2});
    ExpectGoesOn(bw, ByHand({1}, 1, 2), optimizer, "none", {4});
  }
  for (const std::string& correction : corrections) {
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

TEST(State, NamesAllThatIsKept) {
  const StageLayout layout({.layers = 2, .hidden = 8, .heads = 2, .sequence = 5, .vocabulary = 13},
                           {0, 2});
  for (const std::string& optimizer : OptimizerNames()) {
    for (const std::string& correction : CorrectionNames()) {
      if (correction == "basis-rotation" && optimizer != "adamw") continue;
      SCOPED_TRACE(optimizer + ", " + correction);
      OptimizerOptions options;
      options.name = optimizer;
      const auto made = MakeCorrected(options, {.name = correction}, layout, {.updates = 2});
      std::set<std::pair<int, std::string>> names;
      std::vector<int64_t> floats(layout.tensors().size());
      for (const StatePart& part : made->State()) {
        EXPECT_TRUE(names.emplace(part.tensor, part.name).second) << part.name;
        EXPECT_NE(part.floats.empty(), part.doubles.empty());
        // Numbers per tensor do not count as floats of it.
        if (part.floats.size() > 1) {
          floats[static_cast<size_t>(part.tensor)] += static_cast<int64_t>(part.floats.size());
        }
      }
      for (size_t i = 0; i < floats.size(); ++i) {
        EXPECT_EQ(floats[i], made->StateFloats(static_cast<int>(i))) << layout.tensors()[i].name;
      }
    }
  }
}

TEST(ResumeOf, KeepsTheLastAndWhatIsKnownToBeGood) {
  const ScratchFolder folder;
  const Way way = Threads("pipedream", 3, 1);
  const CheckpointSettings settings{.folder = folder.path(), .every = 2, .keep_last = 2};
  TrainFrom(way, For(way, "adamw", "none"), {}, settings, kSteps);
  // No batch has been computed on step 6's or 7's weights on the first stage, 2 updates late.
  EXPECT_EQ(CompleteSteps(folder.path()), (std::vector<int64_t>{4, 6, 7}));
  size_t entries = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    entries += entry.is_directory() ? 1 : 0;
  }
  EXPECT_EQ(entries, 3u);

  const ScratchFolder other;
  const Way sync = Threads("1f1b", 3);
  TrainFrom(sync, For(sync, "adamw", "none"), {},
            {.folder = other.path(), .every = 2, .keep_last = 2}, kSteps);
  EXPECT_EQ(CompleteSteps(other.path()), (std::vector<int64_t>{6, 7}));
}

}  // namespace
}  // namespace pipelag
