// Who is called when the process is told to end.
#include "runtime/termination.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <semaphore>

namespace pipelag {
namespace {

/// Counts and names the calls of one reaction.
class Heard {
 public:
  OnTermination::Reaction reaction() {
    return [this](const std::string& signal) {
      name_ = signal;
      calls_.release();
    };
  }
  bool Once(const std::string& name) {
    return calls_.try_acquire_for(std::chrono::seconds(60)) && name_ == name &&
           !calls_.try_acquire();
  }
  bool Never() { return !calls_.try_acquire(); }

 private:
  std::string name_;
  std::counting_semaphore<> calls_{0};
};

TEST(OnTermination, WhatStandsAroundARunIsCalledOnlyOutsideOfIt) {
  const TerminationSignals signals;
  Heard around;
  const OnTermination otherwise(around.reaction(), OnTermination::When::kOtherwise);
  ASSERT_EQ(raise(SIGTERM), 0);
  EXPECT_TRUE(around.Once("SIGTERM"));
  {
    Heard first;
    Heard second;
    const OnTermination one(first.reaction());
    const OnTermination other(second.reaction());
    ASSERT_EQ(raise(SIGINT), 0);
    EXPECT_TRUE(first.Once("SIGINT"));
    EXPECT_TRUE(second.Once("SIGINT"));
    EXPECT_TRUE(around.Never());
  }
  ASSERT_EQ(raise(SIGTERM), 0);
  EXPECT_TRUE(around.Once("SIGTERM"));
}

}  // namespace
}  // namespace pipelag
