// Who is called when the process is told to end.
#include "runtime/termination.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <semaphore>
#include <thread>

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
  ASSERT_EQ(kill(getpid(), SIGTERM), 0);
  EXPECT_TRUE(around.Once("SIGTERM"));
  {
    Heard first;
    Heard second;
    const OnTermination one(first.reaction());
    const OnTermination other(second.reaction());
    ASSERT_EQ(kill(getpid(), SIGINT), 0);
    EXPECT_TRUE(first.Once("SIGINT"));
    EXPECT_TRUE(second.Once("SIGINT"));
    EXPECT_TRUE(around.Never());
  }
  ASSERT_EQ(kill(getpid(), SIGTERM), 0);
  EXPECT_TRUE(around.Once("SIGTERM"));
}

TEST(TerminationSignals, RunNoHandlerOnAThreadThatMayCompute) {
  const TerminationSignals signals;
  const auto blocked = [] {
    sigset_t now;
    pthread_sigmask(SIG_SETMASK, nullptr, &now);
    return sigismember(&now, SIGTERM) + sigismember(&now, SIGINT) + sigismember(&now, SIGHUP);
  };
  EXPECT_EQ(blocked(), 3);
  int in_thread = 0;
  std::thread([&] { in_thread = blocked(); }).join();
  EXPECT_EQ(in_thread, 3);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    struct sigaction now {};
    ASSERT_EQ(sigaction(signal, nullptr, &now), 0);
    EXPECT_EQ(now.sa_handler, SIG_DFL);
  }
}

TEST(TerminationSignals, EndTheProcessWhereNothingGoesOn) {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    EXPECT_EXIT(
        {
          const TerminationSignals signals;
          kill(getpid(), signal);
          for (;;) pause();
        },
        testing::KilledBySignal(signal), "");
  }
}

}  // namespace
}  // namespace pipelag
