// Copies of a pipeline as one schedule: whose micro-batches, whose ranks, which gradients meet.
#include "models/schedule/replicate.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "models/schedule/generators.h"
#include "models/schedule/program.h"
#include "models/schedule/text.h"
#include "tests/reason.h"

namespace pipelag {
namespace {

using Purpose = CollectiveGroup::Purpose;

Schedule Reducing(std::string_view name, int ranks, int microbatches, bool norm = false) {
  return Generate(name,
                  {.ranks = ranks, .microbatches = microbatches, .reduction = true, .norm = norm});
}

TEST(Replicate, OfOneChangesNothing) {
  const Schedule one = Reducing("1f1b", 3, 4);
  const Schedule same = Replicate(one, 1);
  EXPECT_EQ(same.body, one.body);
  EXPECT_EQ(same.placement, one.placement);
  EXPECT_EQ(same.replicas, 1);
  EXPECT_EQ(same.groups.size(), one.groups.size());
}

TEST(Replicate, SharesTheBatchInBlocksAndPutsPipelinesSideBySide) {
  const Schedule one = Reducing("1f1b", 2, 3);
  const Schedule all = Replicate(one, 3);
  EXPECT_EQ(all.ranks, 6);
  EXPECT_EQ(all.stages, 2);
  EXPECT_EQ(all.streams, 3);
  EXPECT_EQ(all.microbatches, 9);
  EXPECT_EQ(all.placement, (std::vector<int>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(RankName(all, 3), "rank 3 (replica 1)");
  EXPECT_EQ(RankName(one, 1), "rank 1");
  ASSERT_EQ(all.groups.size(), 2u);
  EXPECT_EQ(all.groups[1].purpose, Purpose::kWeights);
  EXPECT_EQ(all.groups[1].stages, (std::vector<int>{1, 3, 5}));
  for (size_t rank = 0; rank < 6; ++rank) {
    const auto& body = all.body[rank];
    const auto& own = one.body[rank % 2];
    ASSERT_EQ(body.size(), own.size());
    const auto replica = static_cast<int>(rank / 2);
    for (size_t i = 0; i < body.size(); ++i) {
      EXPECT_EQ(body[i].kind, own[i].kind);
      if (!HasMicrobatch(own[i].kind)) {
        EXPECT_EQ(body[i].microbatch, own[i].microbatch);
        continue;
      }
      EXPECT_EQ(body[i].microbatch, own[i].microbatch + 3 * replica);
      EXPECT_EQ(body[i].stage, own[i].stage + 2 * replica);
    }
  }
}

// Steps before and after the body's own keep their distance, however large the batch of all.
TEST(Replicate, KeepsStepsOfAnEndlessBody) {
  const Schedule one = Reducing("2bw", 4, 5);
  const Schedule all = Replicate(one, 2);
  for (size_t rank = 0; rank < all.body.size(); ++rank) {
    for (size_t i = 0; i < all.body[rank].size(); ++i) {
      const Action& action = all.body[rank][i];
      const Action& own = one.body[rank % 4][i];
      EXPECT_EQ(all.ShiftOf(action), one.ShiftOf(own));
      if (!HasMicrobatch(own.kind)) continue;
      const auto replica = static_cast<int64_t>(rank / 4);
      EXPECT_EQ(all.WithinStep(action), one.WithinStep(own) + 5 * replica);
      EXPECT_EQ(all.StreamOfMicrobatch(action.microbatch), replica);
    }
  }
}

TEST(Replicate, OfEverySchedulePipelinesAreAsTheyWereAlone) {
  for (const Generator& generator : Generators()) {
    SCOPED_TRACE(generator.name);
    const Schedule schedule = Reducing(generator.name, 4, 8);
    const Program one(schedule, 3);
    const Program all(Replicate(schedule, 3), 3);
    for (int placed = 0; placed < all.schedule().placed_stages(); ++placed) {
      const int own = placed % schedule.placed_stages();
      EXPECT_EQ(all.versions(placed).gradient_delay, one.versions(own).gradient_delay);
      EXPECT_EQ(all.versions(placed).weight_versions, one.versions(own).weight_versions);
      EXPECT_EQ(all.versions(placed).gradient_buffers, one.versions(own).gradient_buffers);
      EXPECT_EQ(all.PeakInFlight(placed), one.PeakInFlight(own));
    }
  }
}

TEST(Replicate, OfTwoDirectionsJoinsTheCopiesOfAllReplicas) {
  const Schedule all = Replicate(Reducing("dualpipe", 2, 4, true), 2);
  EXPECT_EQ(all.streams, 4);
  EXPECT_EQ(all.streams_per_replica(), 2);
  EXPECT_EQ(all.groups[0].stages, (std::vector<int>{0, 2, 4, 6}));
  // A norm for each replica, over both its directions.
  ASSERT_EQ(all.groups.size(), 4u);
  EXPECT_EQ(all.groups[2].purpose, Purpose::kNorm);
  EXPECT_EQ(all.groups[2].stages, (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(all.groups[3].stages, (std::vector<int>{4, 5, 6, 7}));
  EXPECT_TRUE(Validate(all).empty());
}

TEST(Replicate, RefusesWhatWouldDriftApart) {
  const Schedule alone = Generate("1f1b", {.ranks = 2, .microbatches = 2});
  EXPECT_NE(ReasonOf([&] { Replicate(alone, 2); }).find("would drift apart"), std::string::npos);
  const Schedule one = Reducing("1f1b", 2, 2);
  EXPECT_NE(ReasonOf([&] { Replicate(one, 0); }).find("at least 1"), std::string::npos);
  EXPECT_NE(ReasonOf([&] { Replicate(one, 40000); }).find("more than the 65535"),
            std::string::npos);
  Schedule uneven = Replicate(one, 2);
  uneven.replicas = 3;
  EXPECT_FALSE(Validate(uneven).empty());
}

}  // namespace
}  // namespace pipelag
