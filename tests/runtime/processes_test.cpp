// Ranks that are processes, each on a thread here: what they end with, and how they end when one of
// them fails, goes away or is left without a message.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <numeric>

#include "models/file.h"
#include "models/schedule/generators.h"
#include "runtime/data/grammar.h"
#include "runtime/processes/clocks.h"
#include "runtime/processes/process_transport.h"
#include "runtime/serial.h"
#include "tests/runtime/power_cut.h"
#include "tests/runtime/scratch_folder.h"
#include "tests/runtime/socket_pairs.h"

namespace pipelag {
namespace {

using testing::HasSubstr;

const Corpus& TestCorpus() {
  static const Corpus corpus = GrammarCorpus(3, 4, 4000);
  return corpus;
}

Program Lowered(const char* schedule, int ranks, int microbatches, int64_t steps) {
  return Program(Generate(schedule, {.ranks = ranks, .microbatches = microbatches}), steps);
}

TrainingOptions Options(const Program& program) {
  TrainingOptions options;
  options.shape = {.layers = 8, .hidden = 8, .heads = 1, .sequence = 4, .vocabulary = 256};
  options.split = SplitLayers(options.shape.layers, program.schedule().stages);
  options.microbatch_size = 1;
  options.learning_rate = {.peak = 0.01f, .total_updates = program.steps()};
  options.validation_microbatches = 1;
  options.deadline = std::chrono::hours(24);
  return options;
}

TEST(Processes, AFailureOfOneEndsAllAndOnlyThatOneReportsIt) {
  for (const char* schedule : {"1f1b", "dualpipe"}) {
    const Program program = Lowered(schedule, 4, 8, 3);
    for (int failing = 0; failing < 4; ++failing) {
      for (const int at : {0, 5, 33}) {
        std::unique_ptr<PowerCut> compute;
        const SocketPairsRun run = RunOnSocketPairs(
            program, Options(program), TestCorpus(), [&](int rank, RankBackend inner, RunControl&) {
              if (rank != failing) return inner;
              compute = std::make_unique<PowerCut>(*inner.compute, at,
                                                   [] { throw Error("the power went off"); });
              return RankBackend{compute.get(), inner.transport};
            });
        for (int rank = 0; rank < 4; ++rank) {
          const std::exception_ptr& error = run.errors[static_cast<size_t>(rank)];
          ASSERT_TRUE(error) << rank;
          EXPECT_THAT(TextOf(error), HasSubstr("the power went off"));
          if (rank == failing) continue;
          EXPECT_THROW(std::rethrow_exception(error), StoppedByPeer) << rank;
          EXPECT_THAT(TextOf(error), HasSubstr(fmt::format("rank {}: ", failing)));
        }
      }
    }
  }
}

TEST(Processes, OneThatIsGoneIsNamedByWhoeverWaitsForIt) {
  const Program program = Lowered("1f1b", 3, 6, 3);
  const std::vector<std::string> errors =
      ErrorsBesideOneGone(program, Options(program), TestCorpus(), 1, 9);
  for (const int rank : {0, 2}) {
    EXPECT_THAT(errors[static_cast<size_t>(rank)],
                HasSubstr("rank 1 is gone: its connection was closed"));
  }
  EXPECT_THAT(errors[0] + errors[2], HasSubstr(" waits for rank 1 to "));
}

TEST(Processes, OneThatHangsIsNamedAtTheDeadline) {
  const Program program = Lowered("gpipe", 2, 4, 2);
  TrainingOptions options = Options(program);
  options.deadline = std::chrono::seconds(3);  // more than any other wait on a busy machine
  std::unique_ptr<PowerCut> compute;
  const SocketPairsRun run = RunOnSocketPairs(
      program, options, TestCorpus(), [&](int rank, RankBackend inner, RunControl& control) {
        if (rank != 0) return inner;
        compute = std::make_unique<PowerCut>(*inner.compute, 6, [&control] {
          while (!control.stopped()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
          control.CheckRunning();
        });
        return RankBackend{compute.get(), inner.transport};
      });
  EXPECT_THAT(TextOf(run.errors[1]), HasSubstr("rank 1 waits for rank 0 to send F number 4"));
  EXPECT_THAT(TextOf(run.errors[1]), HasSubstr("nothing came within 3.00 s"));
  EXPECT_THAT(TextOf(run.errors[0]), HasSubstr("rank 1: "));
}

TEST(Processes, DivergenceEndsTheRunAsOnThreads) {
  const Program program = Lowered("1f1b", 2, 4, 60);
  TrainingOptions options = Options(program);
  options.learning_rate.peak = 1e9f;
  options.optimizer.name = "sgd";
  options.optimizer.learning_rate = 1e9f;
  const TrainingResult threads = TrainOnThreads(program, options, TestCorpus());
  ASSERT_TRUE(threads.diverged);
  const TrainingResult processes = TrainOnSocketPairs(program, options, TestCorpus());
  EXPECT_EQ(processes.diverged, threads.diverged);
  EXPECT_EQ(processes.step_losses.size(), threads.step_losses.size());
  EXPECT_LE(processes.trace.steps, *processes.diverged);
}

TEST(Processes, TheTraceIsOnOneClockAndWhole) {
  const Program program = Lowered("2bw", 3, 6, 4);
  const TrainingResult run = TrainOnSocketPairs(program, Options(program), TestCorpus());
  const TrainingResult threads = TrainOnThreads(program, Options(program), TestCorpus());
  EXPECT_EQ(run.weights_sha256, threads.weights_sha256);
  ASSERT_EQ(run.trace.spans.size(), threads.trace.spans.size());
  EXPECT_TRUE(AreSorted(run.trace));
  for (const Span& span : run.trace.spans) EXPECT_LE(span.start, span.end);
}

TEST(Processes, AreAsManyAsRanks) {
  const Program program = Lowered("gpipe", 2, 4, 1);
  std::vector<std::unique_ptr<Wire>> wires = SocketPairs(3);
  EXPECT_THROW(TrainOnProcesses(program, Options(program), TestCorpus(), *wires[0]), Error);
}

TEST(Clocks, OfOneMachineAreFoundToAgree) {
  std::vector<std::unique_ptr<Wire>> wires = SocketPairs(2);
  std::vector<ClockOffset> offsets;
  RunControl first(std::chrono::hours(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  RunControl second(std::chrono::hours(1));  // counts from 30 ms later on
  {
    std::jthread other([&] {
      ProcessLink link(*wires[1], second);
      CompareClocks(link, 5);
    });
    ProcessLink link(*wires[0], first);
    offsets = CompareClocks(link, 5);
  }
  ASSERT_EQ(offsets.size(), 2u);
  EXPECT_LE(offsets[1].ahead, -std::chrono::milliseconds(30) + offsets[1].uncertainty);
  EXPECT_GT(offsets[1].uncertainty.count(), 0);
}

// Sizes around what fits a socket's buffer, tags in an order of their own, early and late receives.
TEST(Wire, KeepsOrderPerTagAndLosesNothing) {
  std::vector<std::unique_ptr<Wire>> wires = SocketPairs(2);
  const std::vector<size_t> sizes = {0, 1, 16, 4096, 1u << 20, 3, 0, 5u << 20, 7};
  std::vector<std::vector<std::byte>> sent;
  std::vector<std::vector<std::byte>> received;
  for (size_t i = 0; i < sizes.size(); ++i) {
    sent.emplace_back(sizes[i], static_cast<std::byte>(i + 1));
    received.emplace_back(sizes[i]);
  }
  std::vector<Wire::Handle> out;
  std::vector<Wire::Handle> in;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (i % 2 == 0) in.push_back(wires[1]->Receive(0, static_cast<int>(i % 3), received[i]));
    out.push_back(wires[0]->Send(1, static_cast<int>(i % 3), sent[i]));
    if (i % 2 == 1) {
      static_cast<void>(wires[1]->Done(in.front()) ? in.front() = -1 : 0);
      if (in.front() == -1) in.erase(in.begin());
      in.push_back(wires[1]->Receive(0, static_cast<int>(i % 3), received[i]));
    }
  }
  while (!out.empty() || !in.empty()) {
    std::erase_if(out, [&](Wire::Handle handle) { return wires[0]->Done(handle); });
    std::erase_if(in, [&](Wire::Handle handle) { return wires[1]->Done(handle); });
  }
  EXPECT_EQ(received, sent);
}

TEST(Wire, BringsProcessesTogetherByHostAndPort) {
  const Socket reserved = Listen(0);
  const int port = PortOf(reserved) == 65535 ? 65534 : PortOf(reserved) + 1;
  constexpr int kSize = 4;
  std::vector<std::unique_ptr<Wire>> wires(kSize);
  {
    std::vector<std::jthread> threads;
    for (int rank = kSize - 1; rank >= 0; --rank) {
      threads.emplace_back([&, rank] {
        wires[static_cast<size_t>(rank)] =
            OpenSocketWire(rank, kSize, "localhost", port, std::chrono::seconds(20));
      });
    }
  }
  for (int a = 0; a < kSize; ++a) {
    for (int b = 0; b < kSize; ++b) {
      if (a == b) continue;
      const int said = 100 * a + b;
      int heard = 0;
      Wire& from = *wires[static_cast<size_t>(a)];
      Wire& to = *wires[static_cast<size_t>(b)];
      const auto sent = from.Send(b, 1, std::as_bytes(std::span(&said, 1)));
      const auto got = to.Receive(a, 1, std::as_writable_bytes(std::span(&heard, 1)));
      while (!to.Done(got)) {
      }
      EXPECT_TRUE(from.Done(sent));
      EXPECT_EQ(heard, said);
    }
  }
}

TEST(Wire, BringsProcessesTogetherByAFile) {
  const ScratchFolder folder;
  const std::filesystem::path file = folder.path() / "rendezvous";
  // Left by an earlier run: nobody answers there.
  WriteFile(file, "localhost 1\n");
  std::vector<std::unique_ptr<Wire>> wires(2);
  {
    std::vector<std::jthread> threads;
    for (const int rank : {1, 0}) {
      threads.emplace_back([&, rank] {
        wires[static_cast<size_t>(rank)] = OpenSocketWire(rank, 2, file, std::chrono::seconds(20));
      });
    }
  }
  EXPECT_FALSE(std::filesystem::exists(file));
  const int said = 7;
  int heard = 0;
  const auto sent = wires[0]->Send(1, 1, std::as_bytes(std::span(&said, 1)));
  const auto got = wires[1]->Receive(0, 1, std::as_writable_bytes(std::span(&heard, 1)));
  while (!wires[1]->Done(got)) {
  }
  EXPECT_TRUE(wires[0]->Done(sent));
  EXPECT_EQ(heard, said);
}

/// For as long as it lives.
class Variables {
 public:
  explicit Variables(std::map<std::string, std::string> set) : set_(std::move(set)) {
    for (const auto& [name, value] : set_) setenv(name.c_str(), value.c_str(), 1);
  }
  ~Variables() {
    for (const auto& [name, value] : set_) unsetenv(name.c_str());
  }
  Variables(const Variables&) = delete;
  Variables& operator=(const Variables&) = delete;

 private:
  std::map<std::string, std::string> set_;
};

TEST(Launch, IsReadFromTheVariablesOfLaunchersWithAPortOrAFile) {
  {
    const Variables none({});
    EXPECT_EQ(HowLaunched().by, Launched::By::kNobody);
  }
  {
    const Variables file({{"RANK", "1"}, {"WORLD_SIZE", "3"}, {"PIPELAG_RENDEZVOUS", "/x"}});
    const Launched launched = HowLaunched();
    EXPECT_EQ(launched.by, Launched::By::kVariables);
    EXPECT_EQ(launched.rank, 1);
    EXPECT_EQ(launched.size, 3);
    EXPECT_EQ(launched.file, "/x");
  }
  {
    const Variables alone({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}});
    EXPECT_EQ(HowLaunched().by, Launched::By::kNobody);  // a shell within a job
    const Variables master({{"MASTER_ADDR", "here"}, {"MASTER_PORT", "100"}});
    const Launched launched = HowLaunched();
    EXPECT_EQ(launched.by, Launched::By::kVariables);
    EXPECT_EQ(launched.size, 4);
    EXPECT_EQ(launched.port, 101);
  }
  // What mpirun sets, MPICH's launchers, and srun with PMIx; the last before Slurm's own.
  const std::vector<std::map<std::string, std::string>> of_mpi = {
      {{"OMPI_COMM_WORLD_SIZE", "2"}},
      {{"PMI_SIZE", "2"}},
      {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}, {"PMIX_RANK", "0"}, {"MASTER_ADDR", "here"}}};
  for (const auto& set : of_mpi) {
    const Variables mpi(set);
    EXPECT_EQ(HowLaunched().by, Launched::By::kMpi) << set.begin()->first;
  }
  {
    const Variables half({{"RANK", "1"}, {"MASTER_ADDR", "here"}});
    EXPECT_THROW(HowLaunched(), Error);
  }
}

TEST(Wire, SaysWhoIsMissing) {
  const Socket reserved = Listen(0);
  const int port = PortOf(reserved) == 65535 ? 65534 : PortOf(reserved) + 1;
  try {
    OpenSocketWire(0, 3, "localhost", port, std::chrono::seconds(1));
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 0 has heard nothing of ranks 1, 2"));
  }
  try {
    OpenSocketWire(1, 3, "localhost", port, std::chrono::seconds(1));
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 1 cannot reach rank 0 at localhost:"));
  }
}

}  // namespace
}  // namespace pipelag
