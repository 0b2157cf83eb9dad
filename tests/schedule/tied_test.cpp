// The exchange of a tensor that first and last stage share: where generators put it, what it costs
// in versions and accumulators, and which schedules have no place for it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "models/schedule/generators.h"
#include "models/schedule/program.h"
#include "models/schedule/text.h"
#include "tests/reason.h"

namespace pipelag {
namespace {

using Purpose = CollectiveGroup::Purpose;
using testing::HasSubstr;

constexpr int kMicrobatches = 12;

std::vector<CollectiveGroup> SharedOf(const Schedule& schedule) {
  std::vector<CollectiveGroup> shared;
  for (const CollectiveGroup& group : schedule.groups) {
    if (group.purpose == Purpose::kShared) shared.push_back(group);
  }
  return shared;
}

TEST(Tied, FirstAndLastStageExchangeBeforeTheyUpdate) {
  for (const Generator& generator : Generators()) {
    for (const int ranks : {1, 2, 4}) {
      SCOPED_TRACE(std::string(generator.name) + ' ' + std::to_string(ranks));
      const std::string name(generator.name);
      GeneratorOptions options{.ranks = ranks, .microbatches = kMicrobatches, .tied = true};
      if (name == "pipedream" || name == "paci") {
        EXPECT_THAT(ReasonOf([&] { Generate(name, options); }),
                    testing::AllOf(HasSubstr(name + " cannot wait for a tied embedding"),
                                   HasSubstr("it would undo the schedule")));
        continue;
      }
      if (name == "dualpipe" && ranks == 1) continue;
      for (const bool norm : {false, true}) {
        options.norm = norm;
        const Schedule schedule = Generate(name, options);
        EXPECT_TRUE(Validate(schedule).empty());
        const Program program(schedule, 5);
        const std::vector<CollectiveGroup> shared = SharedOf(schedule);
        ASSERT_EQ(shared.size(), schedule.stages > 1 ? static_cast<size_t>(schedule.streams) : 0U);
        for (const CollectiveGroup& group : shared) {
          ASSERT_EQ(group.stages.size(), 2U);
          EXPECT_NE(schedule.IsFirst(group.stages[0]), schedule.IsFirst(group.stages[1]));
          EXPECT_NE(schedule.IsLast(group.stages[0]), schedule.IsLast(group.stages[1]));
        }
        // A late one has the gradients of two batches.
        const bool late = !schedule.flushes() && (norm || schedule.stages > 1);
        for (int s = 0; s < schedule.placed_stages(); ++s) {
          EXPECT_EQ(program.versions(s).gradient_buffers, late || name == "2bw" ? 2 : 1) << s;
          EXPECT_EQ(program.versions(s).gradient_delay, schedule.flushes() ? 0 : 1);
        }
      }
    }
  }
}

TEST(Tied, HoldersOnOneRankNeedNoOther) {
  for (const char* name : {"zb-v", "dualpipe-v", "dualpipe"}) {
    const Schedule schedule = Generate(name, {.ranks = 4, .microbatches = 8, .tied = true});
    for (const CollectiveGroup& group : SharedOf(schedule)) {
      EXPECT_EQ(schedule.placement[static_cast<size_t>(group.stages[0])],
                schedule.placement[static_cast<size_t>(group.stages[1])]);
    }
  }
}

TEST(Tied, IsFoundWhereItWouldUndoTheSchedule) {
  for (const WeightPolicy policy :
       {WeightPolicy::kStashed, WeightPolicy::kVerticalSync, WeightPolicy::kLatest}) {
    Schedule schedule = Generate("2bw", {.ranks = 2, .microbatches = 4, .tied = true});
    schedule.policy = policy;
    const std::vector<Finding> findings = Validate(schedule);
    ASSERT_FALSE(findings.empty());
    EXPECT_THAT(findings.front().message,
                testing::AllOf(HasSubstr("would undo a schedule of"),
                               HasSubstr(std::string(PolicyName(policy)) + " weights")));
    EXPECT_THROW(Program(schedule, 3), ScheduleError);
  }
  Schedule schedule = Generate("gpipe", {.ranks = 3, .microbatches = 4, .tied = true});
  schedule.groups.front().stages = {0, 1};
  EXPECT_THAT(Validate(schedule).front().message, HasSubstr("not of one first and one last stage"));
}

TEST(Tied, GoesThroughACsvAndItsSidecar) {
  for (const char* name : {"1f1b", "2bw", "dualpipe"}) {
    const Schedule schedule =
        Generate(name, {.ranks = 2, .microbatches = 4, .norm = true, .tied = true});
    ASSERT_FALSE(CsvIsComplete(schedule));
    const Schedule read = ParseCsv(ToCsv(schedule, schedule.body), ToCsvSidecar(schedule), "x.csv");
    ASSERT_EQ(read.groups.size(), schedule.groups.size());
    for (size_t g = 0; g < read.groups.size(); ++g) {
      EXPECT_EQ(read.groups[g].purpose, schedule.groups[g].purpose);
      EXPECT_EQ(read.groups[g].stages, schedule.groups[g].stages);
    }
    EXPECT_EQ(read.body, schedule.body);
  }
}

}  // namespace
}  // namespace pipelag
