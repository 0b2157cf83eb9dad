// Slices of the network that are held twice: added up in one order, late alike, counted once, and
// refused where they would drift apart.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "models/schedule/generators.h"
#include "tests/runtime/agreed.h"
#include "tests/runtime/small_run.h"

namespace pipelag {
namespace {

using testing::HasSubstr;

TrainingResult Agreed(const Program& program, const TrainingOptions& options) {
  return Agreed(program, options, TestCorpus());
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

TEST(Copies, BothOnOneRankCountOnceInTheNorm) {
  using Kind = ActionKind;
  Schedule schedule = HeldTwice(1);
  schedule.groups.push_back({CollectiveGroup::Purpose::kNorm, {0, 1}});
  schedule.body[0] = {Made(Kind::kForward, 0, 0),        Made(Kind::kBackward, 0, 0),
                      Made(Kind::kForward, 1, 1),        Made(Kind::kBackwardInput, 1, 1),
                      Made(Kind::kBackwardWeight, 1, 1), Made(Kind::kAllReduce, 0, 0),
                      Made(Kind::kAllReduce, 1, 0),      Made(Kind::kUpdate, 1, 0),
                      Made(Kind::kUpdate, 0, 0)};
  TrainingOptions options = Options("adamw", "none", 1);
  options.clip_norm = 0.3;
  const std::string clipped = Agreed(Program(schedule, kSteps), options).weights_sha256;
  options.clip_norm = 1e9;
  EXPECT_NE(Agreed(Program(schedule, kSteps), options).weights_sha256, clipped);
  std::swap(schedule.body[0][5], schedule.body[0][6]);
  EXPECT_NE(ReasonOf([&] {
              TrainOnThreads(Program(schedule, kSteps), options, TestCorpus());
            }).find("norm of gradients is taken before their copies are added"),
            std::string::npos);
}

TEST(Copies, OfWhichOneRunsAheadAreAllAsLate) {
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
  Agreed(program, Options("adamw", "error-feedback", 1));
}

TEST(Copies, AgreeOnBrokenWeightsToo) {
  const Program program(Generate("dualpipe", {.ranks = 2, .microbatches = 4}), 1);
  TrainingOptions options = Options("adamw", "none", 2);
  options.learning_rate.peak = 3e38f;
  EXPECT_TRUE(TrainOnThreads(program, options, TestCorpus()).diverged);
  EXPECT_TRUE(TrainSerially(PlanOf(program), options, TestCorpus()).diverged);
}

TEST(Copies, RefusalsOfWhatWouldNotBeOneNetwork) {
  const auto refusal = [](const Schedule& schedule) {
    const TrainingOptions options = Options("sgd", "none", schedule.stages);
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

}  // namespace
}  // namespace pipelag
