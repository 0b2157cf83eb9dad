// What is freed holds NaN until it is taken again, by default where sanitizers look on.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <memory>
#include <vector>

#include "models/schedule/generators.h"
#include "runtime/cpu/threads.h"
#include "runtime/compute_around.h"
#include "tests/runtime/small_run.h"

namespace pipelag {
namespace {

/// Looks at a message when the action that consumes it has been done.
class SpoilWatch : public ComputeAround {
 public:
  SpoilWatch(Compute& inner, std::atomic<int>& spoilt) : ComputeAround(inner), spoilt_(spoilt) {}
  EventPtr Start(const ComputeTask& task, std::span<const EventPtr> after) override {
    const EventPtr event = ComputeAround::Start(task, after);
    if (task.input != nullptr && std::isnan(*reinterpret_cast<const float*>(task.input))) {
      ++spoilt_;
    }
    return event;
  }

 private:
  std::atomic<int>& spoilt_;
};

TEST(Poison, FillsWhatIsFreed) {
  EXPECT_EQ(TrainingOptions().poison_freed, kSanitized);
  const Program program(Generate("zb-v", {.ranks = 2, .microbatches = 4}), kSteps);
  TrainingOptions options = Options("sgd", "none", 4);
  for (const bool poison : {false, true}) {
    options.poison_freed = poison;
    std::atomic<int> spoilt = 0;
    std::vector<std::unique_ptr<SpoilWatch>> watches;
    TrainOnThreads(program, options, TestCorpus(), [&](int, RankBackend inner, RunControl&) {
      watches.push_back(std::make_unique<SpoilWatch>(*inner.compute, spoilt));
      return RankBackend{watches.back().get(), inner.transport};
    });
    EXPECT_EQ(spoilt, poison ? 2 * 3 * 4 * kSteps : 0);
  }
}

}  // namespace
}  // namespace pipelag