// Passes as graphs: captured once, replayed in the order of the stream, launched one by one where
// there are too many.
#include "runtime/device/bodies.h"

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include "models/error.h"
#include "tests/runtime/late_gpu.h"

namespace pipelag {
namespace {

class BodiesTest : public testing::Test {
 protected:
  /// Enqueues what makes `number` 10 · number + digit.
  void Append(int digit) {
    machine_.Do(stream_, [this, digit] { number_ = 10 * number_ + digit; });
  }
  int64_t Number() {
    machine_.Finish(stream_);
    return number_;
  }
  static Bodies::Key KeyOf(int activation) {
    return {.kind = ActionKind::kForward, .activation = activation};
  }

  LateMachine machine_{4};
  LateGpu gpu_{machine_, 0, false};
  Stream stream_ = gpu_.NewStream(false);
  std::atomic<int64_t> number_{0};
};

TEST_F(BodiesTest, AreCapturedOnceAndReplayedInOrder) {
  Bodies bodies(gpu_, stream_);
  int calls = 0;
  const auto run = [&](int digit) {
    bodies.Run(KeyOf(digit), [&, digit] {
      ++calls;
      Append(digit);
    });
  };
  for (const int digit : {1, 2, 1, 1}) run(digit);
  Append(7);
  run(2);
  EXPECT_EQ(Number(), 121172);
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(gpu_.captured, 2);
  EXPECT_EQ(gpu_.replayed, 5);
}

TEST_F(BodiesTest, ThatThrowLeaveTheStreamAsItWas) {
  Bodies bodies(gpu_, stream_);
  const auto fail = [&] {
    Append(1);
    throw Error("no such kernel");
  };
  EXPECT_THROW(bodies.Run(KeyOf(0), fail), Error);
  Append(2);
  bodies.Run(KeyOf(0), [&] { Append(3); });
  EXPECT_EQ(Number(), 23);
}

TEST_F(BodiesTest, OfTooManyKindsAreLaunched) {
  Bodies bodies(gpu_, stream_);
  const int all = static_cast<int>(Bodies::kMost) + 2;
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < all; ++i) {
      bodies.Run(KeyOf(i), [&] { machine_.Do(stream_, [&] { ++number_; }); });
    }
  }
  EXPECT_EQ(Number(), 2 * all);
  EXPECT_EQ(gpu_.captured, all - 2);
  EXPECT_EQ(gpu_.replayed, 2 * (all - 2));
}

/// The imitated device notices what a GPU would refuse.
TEST_F(BodiesTest, TakeAndAskForNothingWhileTheyAreCaptured) {
  const DeviceMark mark = gpu_.NewMark();
  Bodies bodies(gpu_, stream_);
  static std::function<void()> act;
  static Bodies* all = nullptr;
  all = &bodies;
  int key = 0;
  for (const auto& illegal : std::vector<std::function<void()>>{
           [&] { gpu_.Free(gpu_.Allocate(1)); }, [&] { gpu_.Reached(mark); },
           [&] { gpu_.WaitFor(stream_, mark); }, [&] { gpu_.Record(mark, stream_); }}) {
    act = illegal;
    static Bodies::Key at;
    at = KeyOf(key++);
    EXPECT_NONFATAL_FAILURE(all->Run(at, act), "while work is captured");
  }
  machine_.Finish(stream_);
}

}  // namespace
}  // namespace pipelag
