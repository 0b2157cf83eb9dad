// Times measured alone, slowed down as much as those of a run of reference.
#include "traces/side_by_side.h"

#include <gtest/gtest.h>

namespace pipelag {
namespace {

std::vector<Nanoseconds> Times(std::initializer_list<int64_t> counts) {
  std::vector<Nanoseconds> times;
  for (const int64_t count : counts) times.emplace_back(count);
  return times;
}

Costs Fused() {
  Costs costs;
  costs.forward = Times({10, 30});
  costs.backward = Times({50, 50});
  costs.update = Times({4, 4});
  return costs;
}

TEST(SideBySide, IsTheReferenceItselfWhereThatIsWhatWasMeasuredAlone) {
  Costs running = Fused();
  running.forward = Times({20, 60});
  running.backward = Times({75, 75});
  running.update = Times({5, 5});
  running.p2p_latency = Nanoseconds{7};
  running.activation_bytes = 4096;
  Costs expected = SideBySide(Fused(), Fused(), running);
  EXPECT_EQ(expected.source, Fused().source + ", slowed as those " + running.source);
  expected.source = running.source;
  EXPECT_EQ(expected, running);
}

TEST(SideBySide, SlowsEveryKindAsMuchAsTheReferenceIs) {
  Costs alone;  // four stages with split backwards, of which the reference has neither
  alone.forward = Times({8, 8, 8, 9});
  alone.backward_input = Times({20, 21, 20, 20});
  alone.backward_weight = Times({30, 30, 30, 30});
  alone.update = Times({1, 1, 1, 3});
  Costs running = Fused();
  running.forward = Times({15, 45});   // 60 : 40
  running.backward = Times({60, 50});  // 110 : 100
  running.update = Times({8, 8});      // 2 : 1
  const Costs costs = SideBySide(alone, Fused(), running);
  EXPECT_EQ(costs.forward, Times({12, 12, 12, 14}));
  EXPECT_EQ(costs.backward_input, Times({22, 24, 22, 22}));
  EXPECT_EQ(costs.backward_weight, Times({33, 33, 33, 33}));
  EXPECT_EQ(costs.update, Times({2, 2, 2, 6}));
  EXPECT_TRUE(costs.backward.empty());
}

TEST(SideBySide, TakesTheHalvesOfTheReferencesBackwardsTogether) {
  Costs reference_alone = Fused();
  reference_alone.backward.clear();
  reference_alone.backward_input = Times({20, 20});
  reference_alone.backward_weight = Times({30, 30});
  Costs running = reference_alone;
  running.backward_input = Times({60, 60});
  running.backward_weight = Times({40, 40});
  EXPECT_EQ(SideBySide(Fused(), reference_alone, running).backward, Times({100, 100}));
}

/// A schedule with whole backwards and halves, as DualPipe has them.
TEST(SideBySide, TakesTheFormOfBackwardThatBothReferencesKnow) {
  Costs reference_alone = Fused();
  reference_alone.backward.clear();
  reference_alone.backward_input = Times({20, 20});
  reference_alone.backward_weight = Times({30, 30});
  Costs running = reference_alone;
  running.backward = Times({1000, 1000});
  running.backward_input = Times({30, 30});
  running.backward_weight = Times({45, 45});
  EXPECT_EQ(SideBySide(Fused(), reference_alone, running).backward, Times({75, 75}));
}

TEST(SideBySide, LeavesUpdatesThatTakeNoTimeAsTheyAre) {
  Costs reference = Fused();
  reference.update = Times({0, 0});
  EXPECT_EQ(SideBySide(Fused(), reference, reference).update, Fused().update);
}

}  // namespace
}  // namespace pipelag
