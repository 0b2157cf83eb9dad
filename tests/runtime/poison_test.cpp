// What is freed holds NaN until it is taken again, by default where sanitizers look on.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <memory>
#include <vector>

#include "models/schedule/generators.h"
#include "runtime/cpu/threads.h"
#include "tests/runtime/small_run.h"

namespace pipelag {
namespace {

/// Looks at a message when the action that consumes it has been done.
class SpoilWatch : public Compute {
 public:
  SpoilWatch(Compute& inner, std::atomic<int>& spoilt) : inner_(inner), spoilt_(spoilt) {}
  std::byte* MessageBuffer(int lane, int index) override {
    return inner_.MessageBuffer(lane, index);
  }
  std::span<float> GradientBuffer(int stage, int index) override {
    return inner_.GradientBuffer(stage, index);
  }
  std::span<float> SharedGradient(int stage, int index) override {
    return inner_.SharedGradient(stage, index);
  }
  EventPtr Start(const ComputeTask& task, std::span<const EventPtr> after) override {
    const EventPtr event = inner_.Start(task, after);
    if (task.input != nullptr && std::isnan(*reinterpret_cast<const float*>(task.input))) {
      ++spoilt_;
    }
    return event;
  }

 private:
  Compute& inner_;
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