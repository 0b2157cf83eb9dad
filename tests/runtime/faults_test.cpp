// Ranks that fail, are killed or are no longer heard of, at every action and every message there
// is: all others end, saying who it was and what was being done.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "models/schedule/generators.h"
#include "runtime/past_event.h"
#include "tests/runtime/agreed.h"
#include "tests/runtime/power_cut.h"
#include "tests/runtime/small_run.h"
#include "tests/runtime/transport_around.h"

namespace pipelag {
namespace {

using testing::HasSubstr;

struct SmallRun {
  Program program;
  TrainingOptions options;
};

SmallRun Made(const std::string& schedule, const GeneratorOptions& sizes) {
  Program program(Generate(schedule, sizes), 2);
  TrainingOptions options = Options("adamw", "none", program.schedule().stages);
  options.shape.tied = sizes.tied;
  if (sizes.norm) options.clip_norm = 0.3;
  options.deadline = std::chrono::hours(24);  // never what ends a run
  return {std::move(program), std::move(options)};
}

/// `all`: of every kind of action; else of those that processes have to wait for.
std::vector<SmallRun> Runs(bool all) {
  std::vector<SmallRun> runs;
  runs.push_back(Made("1f1b", {.ranks = 3, .microbatches = 2, .norm = true, .tied = true}));
  runs.push_back(Made("2bw", {.ranks = 2, .microbatches = 2}));
  if (!all) return runs;
  runs.push_back(Made("zb-h1", {.ranks = 2, .microbatches = 2}));
  runs.push_back(Made("pipedream", {.ranks = 3, .microbatches = 1}));
  runs.push_back(Made("dualpipe", {.ranks = 2, .microbatches = 4}));
  return runs;
}

/// Of everything that a rank computes for a stage.
std::set<std::string> ActionsOf(const Program& program, int rank) {
  std::set<std::string> names;
  for (LaneWalk walk(program, rank); !walk.done(); walk.Advance()) {
    const RunAction& action = walk.action();
    if (action.kind == ActionKind::kAllReduce) continue;
    names.insert(fmt::format("{}{}{}", program.schedule().SliceOf(action.stage),
                             KindName(action.kind), action.microbatch));
  }
  return names;
}

TEST(Failure, OfAnyRankAtAnyActionEndsTheRunWithItsOwnMessage) {
  for (const auto& [program, options] : Runs(!kSanitized)) {
    const Schedule& schedule = program.schedule();
    for (int failing = 0; failing < schedule.ranks; ++failing) {
      SCOPED_TRACE(fmt::format("{}, rank {}", schedule.name, failing));
      std::set<std::string> named;
      for (int at = 0;; ++at) {
        std::unique_ptr<PowerCut> compute;
        const std::string text = ReasonOf([&] {
          TrainOnThreads(program, options, TestCorpus(),
                         [&](int rank, RankBackend inner, RunControl&) {
                           if (rank != failing) return inner;
                           compute = std::make_unique<PowerCut>(
                               *inner.compute, at, [] { throw Error("the power went off"); });
                           return RankBackend{compute.get(), inner.transport};
                         });
        });
        if (text.empty()) break;  // there are no more
        const std::string before = fmt::format("rank {} at ", failing);
        ASSERT_TRUE(text.starts_with(before)) << text;
        ASSERT_TRUE(text.ends_with(": the power went off")) << text;
        named.insert(text.substr(before.size(), text.find(':') - before.size()));
      }
      std::set<std::string> missing;
      for (const std::string& name : ActionsOf(program, failing)) {
        if (!named.contains(name)) missing.insert(name);
      }
      EXPECT_THAT(missing, testing::IsEmpty());
    }
  }
}

void ExpectAllOthersTell(const SmallRun& run, int gone) {
  const auto& [program, options] = run;
  size_t moments = 0;
  for (;; ++moments) {
    SCOPED_TRACE(fmt::format("{}, rank {} at {}", program.schedule().name, gone, moments));
    const std::vector<std::string> errors =
        ErrorsBesideOneGone(program, options, TestCorpus(), gone, static_cast<int>(moments));
    size_t told = 0;
    for (const std::string& error : errors) {
      if (error.empty()) continue;
      ++told;
      EXPECT_THAT(error, HasSubstr(fmt::format("rank {} is gone", gone)));
    }
    if (told == 0) break;  // it was never killed
    EXPECT_EQ(told, errors.size() - 1);
  }
  EXPECT_GE(moments, ActionsOf(program, gone).size());
}

TEST(Failure, OfAProcessThatIsKilledAtAnyActionIsToldByAllOthers) {
  const std::vector<SmallRun> runs = Runs(false);
  std::vector<std::jthread> threads;  // they spend their time waiting
  for (const SmallRun& run : runs) {
    for (int gone = 0; gone < run.program.schedule().ranks; ++gone) {
      threads.emplace_back([&run, gone] { ExpectAllOthersTell(run, gone); });
    }
  }
}

/// A link that is dead from its n-th message on, of which the sender knows nothing.
class DeadLink : public TransportAround {
 public:
  DeadLink(Transport& inner, int countdown) : TransportAround(inner), countdown_(countdown) {}
  EventPtr Post(const Transfer& transfer, std::span<const EventPtr> after) override {
    if (!transfer.send || countdown_-- > 0) return TransportAround::Post(transfer, after);
    return std::make_shared<PastEvent>(Interval{});
  }

 private:
  int countdown_;
};

/// What is said of the n-th message from `dead` that is lost: its receiver misses it, or `dead`
/// itself misses what would have come of it, whoever waits first.
auto SaysWhoWaits(int dead, int n) {
  const std::string missed = fmt::format("rank {} waits for rank {} to send {} number {}", 1 - dead,
                                         dead, dead == 0 ? "F" : "B", n);
  const std::string after = fmt::format("rank {} waits for rank {} to send", dead, 1 - dead);
  return testing::AllOf(testing::AnyOf(HasSubstr(missed), HasSubstr(after)),
                        HasSubstr("nothing came within"));
}

TEST(Failure, OfALinkAtAnyMessageEndsAtTheDeadlineAndSaysWhoWaitsForWhom) {
  auto [program, options] = Made("1f1b", {.ranks = 2, .microbatches = 2});
  options.deadline = std::chrono::milliseconds(300);
  constexpr int kMessages = 2 * 2;  // of each rank
  for (const int dead : {0, 1}) {
    for (int n = 0; n < kMessages; ++n) {
      std::unique_ptr<DeadLink> link;
      EXPECT_THAT(ReasonOf([&] {
                    TrainOnThreads(program, options, TestCorpus(),
                                   [&](int rank, RankBackend inner, RunControl&) {
                                     if (rank != dead) return inner;
                                     link = std::make_unique<DeadLink>(*inner.transport, n);
                                     return RankBackend{inner.compute, link.get()};
                                   });
                  }),
                  SaysWhoWaits(dead, n));
    }
  }
}

TEST(Failure, OfALinkBetweenProcessesIsToldByAll) {
  auto [program, options] = Made("1f1b", {.ranks = 2, .microbatches = 2});
  options.deadline = std::chrono::seconds(3);  // more than any other wait on a busy machine
  std::unique_ptr<DeadLink> link;
  const SocketPairsRun run = RunOnSocketPairs(
      program, options, TestCorpus(), [&](int rank, RankBackend inner, RunControl&) {
        if (rank != 0) return inner;
        link = std::make_unique<DeadLink>(*inner.transport, 2);
        return RankBackend{inner.compute, link.get()};
      });
  for (const std::exception_ptr& error : run.errors) {
    EXPECT_THAT(TextOf(error), SaysWhoWaits(0, 2));
  }
}

}  // namespace
}  // namespace pipelag
