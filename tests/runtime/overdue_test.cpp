// A rank that cannot be stopped, being inside an action that takes longer than anybody would wait:
// the run says so to whoever can end the process.
#include "runtime/overdue.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <future>
#include <mutex>

#include "models/schedule/generators.h"
#include "runtime/data/grammar.h"
#include "tests/runtime/power_cut.h"

namespace pipelag {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

const Corpus& TestCorpus() {
  static const Corpus corpus = GrammarCorpus(3, 4, 4000);
  return corpus;
}

/// An action that only the end of the process would end.
class LongAction {
 public:
  void Do() {
    std::unique_lock lock(mutex_);
    begun_ = true;
    changed_.notify_all();
    // So that without an end the test fails instead of lasting for ever.
    changed_.wait_for(lock, std::chrono::seconds(60), [&] { return ended_; });
  }
  void WaitUntilBegun() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return begun_; });
  }
  /// For TrainingOptions::end_overdue.
  void End(const std::exception_ptr& error) {
    const std::lock_guard lock(mutex_);
    why_ = TextOf(error);
    ended_ = true;
    changed_.notify_all();
  }
  /// What the process would have been ended for; empty if nobody would have ended it.
  std::string why() {
    const std::lock_guard lock(mutex_);
    return why_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool begun_ = false;
  bool ended_ = false;
  std::string why_;
};

/// Of two ranks one is inside a long action at one of its tasks, and something happens to the other
/// at its fourth, which needs nothing of the long one.
struct Case {
  int inside;
  int inside_at;
  int cut;
};

class Overdue : public testing::TestWithParam<Case> {
 protected:
  TrainingOptions Options() const {
    TrainingOptions options;
    options.shape = {.layers = 2, .hidden = 8, .heads = 1, .sequence = 4, .vocabulary = 256};
    options.split = SplitLayers(options.shape.layers, 2);
    options.microbatch_size = 1;
    options.learning_rate = {.peak = 0.01f, .total_updates = program_.steps()};
    options.deadline = std::chrono::hours(24);
    return options;
  }

  RankBackend Interpose(int rank, RankBackend inner, const std::function<void()>& cut) {
    std::unique_ptr<PowerCut>& of_rank = cuts_[static_cast<size_t>(rank)];
    if (rank == GetParam().inside) {
      of_rank = std::make_unique<PowerCut>(*inner.compute, GetParam().inside_at,
                                           [this] { action_.Do(); });
    } else {
      of_rank = std::make_unique<PowerCut>(*inner.compute, 3, [this, cut] {
        action_.WaitUntilBegun();
        cut();
      });
    }
    return {of_rank.get(), inner.transport};
  }

  /// With a process for each rank.
  void RunProcesses(const std::function<void()>& cut) {
    wires_ = SocketPairs(2, &descriptors_);
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        TrainingOptions options = Options();
        if (rank == GetParam().inside) {
          options.end_overdue = [this](const std::exception_ptr& error) { action_.End(error); };
        }
        EXPECT_ANY_THROW(TrainOnProcesses(
            program_, options, TestCorpus(), *wires_[static_cast<size_t>(rank)],
            [&](int, RankBackend inner, RunControl&) { return Interpose(rank, inner, cut); }));
      });
    }
  }

  Program program_ = Program(Generate("gpipe", {.ranks = 2, .microbatches = 6}), 3);
  LongAction action_;
  std::vector<std::vector<int>> descriptors_;
  std::vector<std::unique_ptr<Wire>> wires_;

 private:
  std::array<std::unique_ptr<PowerCut>, 2> cuts_;
};

TEST_P(Overdue, AThreadIsEndedByTheErrorOfAnother) {
  TrainingOptions options = Options();
  options.end_overdue = [this](const std::exception_ptr& error) { action_.End(error); };
  const Interposer interpose = [this](int rank, RankBackend inner, RunControl&) {
    return Interpose(rank, inner, [] { throw Error("the power went off"); });
  };
  EXPECT_THROW(TrainOnThreads(program_, options, TestCorpus(), interpose), Error);
  EXPECT_EQ(action_.why(), fmt::format("rank {0} at {0}F3: the power went off", GetParam().cut));
}

TEST_P(Overdue, AProcessIsEndedByTheErrorOfAnother) {
  RunProcesses([] { throw Error("the power went off"); });
  EXPECT_EQ(action_.why(),
            fmt::format("rank {0}: rank {0} at {0}F3: the power went off", GetParam().cut));
}

TEST_P(Overdue, AProcessSaysWhatItWasAtWhenAnotherWasGone) {
  const auto [inside, at, cut] = GetParam();
  RunProcesses([this, cut = cut] {
    for (const int end : descriptors_[static_cast<size_t>(cut)]) shutdown(end, SHUT_RDWR);
    throw Error("gone without a word");
  });
  EXPECT_THAT(action_.why(), StartsWith(fmt::format("rank {0} at {0}F{1}: ", inside, at)));
  EXPECT_THAT(action_.why(),
              HasSubstr(fmt::format("rank {} is gone: its connection was closed", cut)));
}

// What a run that diverged came to is wanted, however long it takes: here longer than any error.
TEST(OverdueWatch, LeavesARunThatDiverged) {
  std::atomic<bool> ended{false};
  RunControl diverged(std::chrono::hours(24));
  RunControl failed(std::chrono::hours(24));
  std::promise<void> over;
  const OverdueWatch first(diverged, [&](const std::exception_ptr&) { ended = true; });
  const OverdueWatch second(failed, [&](const std::exception_ptr&) { over.set_value(); });
  diverged.Stop(std::make_exception_ptr(Diverged(1)));
  failed.Stop(std::make_exception_ptr(Error("the power went off")));
  over.get_future().wait();
  EXPECT_FALSE(ended);
}

INSTANTIATE_TEST_SUITE_P(EitherWay, Overdue, testing::Values(Case{0, 4, 1}, Case{1, 0, 0}));

}  // namespace
}  // namespace pipelag
