// All stages on one rank: a sound schedule in which nothing overlaps and nothing waits.
#include "models/schedule/one_rank.h"

#include <gtest/gtest.h>

#include <map>

#include "models/schedule/program.h"

namespace pipelag {
namespace {

TEST(OnOneRank, IsSoundAndTakesOneMicrobatchAtATime) {
  for (int stages = 1; stages <= 5; ++stages) {
    for (int microbatches = 1; microbatches <= 4; ++microbatches) {
      for (const bool split : {false, true}) {
        const Schedule schedule = OnOneRank(stages, microbatches, split);
        EXPECT_TRUE(Validate(schedule).empty());
        const Program program(schedule, 3);
        EXPECT_TRUE(program.lanes().empty());
        std::map<ActionKind, int> seen;
        int64_t microbatch = 0;
        for (LaneWalk walk(program, 0); !walk.done(); walk.Advance()) {
          const RunAction& action = walk.action();
          ++seen[action.kind];
          if (!HasMicrobatch(action.kind)) continue;
          EXPECT_GE(action.microbatch, microbatch);
          microbatch = action.microbatch;
        }
        const int each = 3 * stages * microbatches;
        EXPECT_EQ(seen[ActionKind::kForward], each);
        EXPECT_EQ(seen[ActionKind::kBackward], split ? 0 : each);
        EXPECT_EQ(seen[ActionKind::kBackwardInput], split ? each : 0);
        EXPECT_EQ(seen[ActionKind::kBackwardWeight], split ? each : 0);
        EXPECT_EQ(seen[ActionKind::kUpdate], 3 * stages);
      }
    }
  }
}

}  // namespace
}  // namespace pipelag
