// Ranks that are processes: what they come to, and how they end when one of them does.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <string.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "tests/tools/launched.h"

namespace pipelag {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kNetwork =
    " --layers 4 --hidden 16 --heads 2 --sequence 16 --microbatch-size 2 --microbatches 4";

class Processes : public testing::Test {
 protected:
  /// Until the run that logs there is well under way.
  void WaitForSteps(const std::string& log) const { WaitForLines(place_, log, 3); }

  Workplace place_;
};

TEST_F(Processes, EndWithTheWeightsOfThreadsForEverySchedule) {
  const std::string run =
      std::string("run --schedule gpipe,1f1b,2bw,zb-h1 --ranks 3 --steps 3 --format json") +
      kNetwork;
  const json threads = Json(place_.Pipelag(run)).at("results");
  std::vector<Started> started = StartAll(place_, 3, run + " --backend mpi --loss loss.csv");
  const std::vector<Outcome> outcomes = FinishAll(started);
  const json processes = Json(outcomes[0]).at("results");
  ASSERT_EQ(processes.size(), threads.size());
  for (size_t i = 0; i < threads.size(); ++i) {
    EXPECT_EQ(processes[i].at("weights_sha256"), threads[i].at("weights_sha256"));
    EXPECT_EQ(processes[i].at("final_loss"), threads[i].at("final_loss"));
    EXPECT_EQ(processes[i].at("clocks").size(), 3u);
  }
  EXPECT_NE(place_.Read("loss.csv"), "");
  for (const size_t rank : {1, 2}) {
    EXPECT_EQ(outcomes[rank].exit_code, 0);
    EXPECT_EQ(outcomes[rank].out + outcomes[rank].err, "");
  }
}

TEST_F(Processes, GoOnFromACheckpointWithAnotherNumberOfThem) {
  const std::string run = std::string("run --schedule 2bw --steps 6 --format json") + kNetwork;
  const json whole = Json(place_.Pipelag(run + " --ranks 2"));
  std::vector<Started> three =
      StartAll(place_, 3,
               std::string("run --schedule 2bw --steps 6 --ranks 3 --backend mpi --format json "
                           "--checkpoint saved --checkpoint-every 3 --log log.jsonl") +
                   kNetwork);
  for (const Outcome& outcome : FinishAll(three)) EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(Lines(place_.Read("log.jsonl")), 7u);  // and a header
  std::vector<Started> two =
      StartAll(place_, 2, run + " --ranks 2 --backend mpi --resume saved/step-00000003");
  const std::vector<Outcome> outcomes = FinishAll(two);
  EXPECT_EQ(Json(outcomes[0]).at("weights_sha256"), whole.at("weights_sha256"));
}

TEST_F(Processes, OfReplicasEndWithTheWeightsOfThreads) {
  const std::string run = std::string(
                              "run --schedule 1f1b,2bw,zb-h1 --ranks 2 --replicas 2 "
                              "--clip-norm 0.5 --steps 3 --format json") +
                          kNetwork;
  const json threads = Json(place_.Pipelag(run)).at("results");
  std::vector<Started> started = StartAll(place_, 4, run + " --backend mpi");
  const std::vector<Outcome> outcomes = FinishAll(started);
  const json processes = Json(outcomes[0]).at("results");
  for (size_t i = 0; i < threads.size(); ++i) {
    EXPECT_EQ(processes[i].at("weights_sha256"), threads[i].at("weights_sha256"));
    EXPECT_EQ(processes[i].at("final_loss"), threads[i].at("final_loss"));
    EXPECT_EQ(processes[i].at("replicas"), 2);
    EXPECT_EQ(processes[i].at("per_rank").size(), 4u);
  }
  for (const size_t rank : {1, 2, 3}) EXPECT_EQ(outcomes[rank].exit_code, 0);
}

TEST_F(Processes, OfTwoDirectionsLogWhatEveryStepCameTo) {
  std::vector<Started> started =
      StartAll(place_, 2,
               std::string("run --schedule dualpipe --ranks 2 --steps 5 --log log.jsonl --backend "
                           "mpi --format json") +
                   kNetwork);
  const std::vector<Outcome> outcomes = FinishAll(started);
  const double loss = Json(outcomes[0]).at("final_loss");
  EXPECT_EQ(Lines(place_.Read("log.jsonl")), 6u);
  const std::string log = place_.Read("log.jsonl");
  const json last = json::parse(log.substr(log.rfind("{\"step\"")));
  EXPECT_EQ(last.at("loss"), loss);
}

// Replica 0 writes the checkpoints, and one process knows the losses of all.
TEST_F(Processes, OfReplicasLogAndGoOnFromACheckpoint) {
  const std::string run =
      std::string("run --schedule 2bw --ranks 1 --replicas 2 --steps 6 --format json") + kNetwork;
  const json whole = Json(place_.Pipelag(run));
  std::vector<Started> first = StartAll(
      place_, 2, run + " --backend mpi --checkpoint saved --checkpoint-every 3 --log log.jsonl");
  for (const Outcome& outcome : FinishAll(first)) EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(Lines(place_.Read("log.jsonl")), 7u);  // and a header
  std::vector<Started> second =
      StartAll(place_, 2, run + " --backend mpi --resume saved/step-00000003");
  EXPECT_EQ(Json(FinishAll(second)[0]).at("weights_sha256"), whole.at("weights_sha256"));
  const Outcome fewer = place_.Pipelag(
      std::string("run --schedule 2bw --ranks 1 --steps 6 --format json --resume "
                  "saved/step-00000003 --layers 4 --hidden 16 --heads 2 --sequence 16 "
                  "--microbatch-size 2 --microbatches 8"));
  EXPECT_EQ(fewer.exit_code, 0);
  EXPECT_THAT(fewer.err, HasSubstr("added gradients in another order"));
  const Outcome other =
      place_.Pipelag(std::string("run --schedule 2bw --ranks 1 --replicas 3 --steps 6 --resume "
                                 "saved/step-00000003") +
                     kNetwork);
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(other.err, HasSubstr("/microbatches is 8 there, but 12 here"));
}

TEST_F(Processes, OfADeadReplicaEndTheOthersWithItsName) {
  std::vector<Started> started = StartAll(place_, 4,
                                          std::string("run --schedule 1f1b --ranks 2 --replicas 2 "
                                                      "--steps 1000000 --log log --backend mpi") +
                                              kNetwork);
  WaitForSteps("log");
  ASSERT_EQ(kill(started[3].process(), SIGKILL), 0);
  const std::vector<Outcome> outcomes = FinishAll(started);
  for (const size_t rank : {0, 1, 2}) EXPECT_EQ(outcomes[rank].exit_code, 2);
  EXPECT_THAT(outcomes[0].err + outcomes[1].err + outcomes[2].err,
              HasSubstr("rank 3 (replica 1) is gone"));
}

/// However the jobs differ, in what messages and collectives they have too.
TEST_F(Processes, DoOneJob) {
  for (const char* other : {"--schedule gpipe", "--schedule 1f1b --tied",
                            "--schedule 1f1b --clip-norm 1", "--schedule zb-v"}) {
    SCOPED_TRACE(other);
    const std::string port = fmt::format("PIPELAG_PORT={}", FreePort());
    std::vector<Started> started;
    for (const char* rank : {"0", "1"}) {
      started.push_back(place_.Start(
          fmt::format("run {} --ranks 2 --steps 3 --backend mpi{}",
                      rank[0] == '0' ? "--schedule 1f1b" : other, kNetwork),
          {std::string("RANK=") + rank, "WORLD_SIZE=2", "MASTER_ADDR=localhost", port}));
    }
    const std::vector<Outcome> outcomes = FinishAll(started);
    EXPECT_THAT(outcomes[0].err, HasSubstr("rank 1 runs another job than rank 0"));
    for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.exit_code, 2);
  }
}

TEST_F(Processes, OneThatIsKilledEndsTheOthersWithItsName) {
  std::vector<Started> started = StartAll(
      place_, 3,
      std::string("run --schedule 1f1b --ranks 3 --steps 1000000 --log log --backend mpi") +
          kNetwork);
  WaitForSteps("log");
  ASSERT_EQ(kill(started[1].process(), SIGKILL), 0);
  const auto killed = std::chrono::steady_clock::now();
  const std::vector<Outcome> outcomes = FinishAll(started);
  EXPECT_LT(std::chrono::steady_clock::now() - killed,
            std::chrono::seconds(30));  // at once, but for load
  EXPECT_EQ(outcomes[1].exit_code, -SIGKILL);
  for (const size_t rank : {0, 2}) EXPECT_EQ(outcomes[rank].exit_code, 2);
  EXPECT_THAT(outcomes[0].err + outcomes[2].err,
              AllOf(HasSubstr(" waits for rank 1 to "), HasSubstr("rank 1 is gone")));
}

/// The last rank is inside an action that nothing can interrupt: it writes to a pipe that is full.
class InsideAnAction : public Processes {
 protected:
  std::vector<Outcome> EndOne(size_t which, int signal) {
    const Pipe log(place_.PathOf("log"));
    std::vector<Started> started = StartAll(
        place_, 2,
        std::string("run --schedule 1f1b --ranks 2 --steps 10000 --log log --backend mpi") +
            kNetwork);
    started[1].WaitUntilHeldUp();
    EXPECT_EQ(kill(started[which].process(), signal), 0);
    std::vector<Outcome> outcomes;
    for (Started& one : started) outcomes.push_back(one.FinishOrKill());
    return outcomes;
  }
};

TEST_F(InsideAnAction, OneIsEndedByTheDeathOfAnother) {
  const std::vector<Outcome> outcomes = EndOne(0, SIGKILL);
  EXPECT_EQ(outcomes[0].exit_code, -SIGKILL);
  EXPECT_EQ(outcomes[1].exit_code, 2);
  EXPECT_EQ(Lines(outcomes[1].err), 1u) << outcomes[1].err;
  EXPECT_THAT(outcomes[1].err, AllOf(testing::ContainsRegex("pipelag: rank 1 at 1[FBU][0-9]+: "),
                                     HasSubstr("rank 0 is gone: its connection was closed")));
}

TEST_F(InsideAnAction, OneThatIsToldToEndSaysWhichAndEndsTheOthers) {
  const std::vector<Outcome> outcomes = EndOne(1, SIGINT);
  EXPECT_EQ(outcomes[0].exit_code, 2);
  EXPECT_EQ(outcomes[0].err, "");
  EXPECT_EQ(outcomes[1].exit_code, 2);
  EXPECT_THAT(outcomes[1].err, testing::MatchesRegex("pipelag: rank 1 at 1[FBU][0-9]+: told to end "
                                                     "\\(SIGINT\\).*\n"));
}

TEST_F(Processes, OneThatIsToldToEndSaysSo) {
  std::vector<Started> started =
      StartAll(place_, 2,
               std::string("run --schedule 2bw --ranks 2 --steps 1000000 --log log --backend mpi") +
                   kNetwork);
  WaitForSteps("log");
  ASSERT_EQ(kill(started[0].process(), SIGTERM), 0);
  const std::vector<Outcome> outcomes = FinishAll(started);
  EXPECT_EQ(outcomes[0].exit_code, 2);
  EXPECT_THAT(outcomes[0].err,
              testing::ContainsRegex("rank 0 at 0[FBU][0-9]+: told to end \\(SIGTERM\\)"));
  EXPECT_EQ(outcomes[1].exit_code, 2);
}

// Here while it waits for the others to appear.
TEST_F(Processes, OneThatIsToldToEndBeforeAnyRunSaysSo) {
  for (const int signal : {SIGTERM, SIGINT}) {
    Started first =
        place_.Start(std::string("run --schedule 1f1b --ranks 2 --backend mpi") + kNetwork,
                     {"RANK=0", "WORLD_SIZE=2", "PIPELAG_RENDEZVOUS=meeting"});
    WaitForLines(place_, "meeting", 0);
    ASSERT_EQ(kill(first.process(), signal), 0);
    const Outcome outcome = first.FinishOrKill();
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_EQ(outcome.err,
              fmt::format("pipelag: rank 0: told to end (SIG{})\n", sigabbrev_np(signal)));
    place_.Remove("meeting");
  }
}

TEST_F(Processes, SayWhatIsWrongWithTheirStart) {
  const std::string run = std::string("run --schedule 1f1b --ranks 2 --backend mpi") + kNetwork;
  const auto error = [&](const std::vector<std::string>& variables) {
    const Outcome outcome = place_.Start(run, variables).Finish();
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_EQ(Lines(outcome.err), 1u) << outcome.err;
    return outcome.err;
  };
  EXPECT_THAT(error({}), HasSubstr("start all with mpirun or srun"));
  EXPECT_THAT(error({"RANK=0"}), HasSubstr("WORLD_SIZE is not set"));
  EXPECT_THAT(error({"RANK=2", "WORLD_SIZE=2"}), HasSubstr("RANK is not a whole number from 0"));
  EXPECT_THAT(error({"RANK=0", "WORLD_SIZE=2"}), HasSubstr("MASTER_ADDR is not set"));
  EXPECT_THAT(error({"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=localhost", "MASTER_PORT=x"}),
              HasSubstr("MASTER_PORT is not a whole number"));
  EXPECT_THAT(error({"RANK=0", "WORLD_SIZE=1", "MASTER_ADDR=localhost", "MASTER_PORT=29500"}),
              HasSubstr("WORLD_SIZE is 1, but --ranks 2"));
  const Outcome replicas =
      place_
          .Start(run + " --replicas 3",
                 {"RANK=0", "WORLD_SIZE=4", "MASTER_ADDR=localhost", "MASTER_PORT=29500"})
          .Finish();
  EXPECT_EQ(replicas.exit_code, 2);
  EXPECT_THAT(replicas.err, HasSubstr("WORLD_SIZE is 4, but --ranks 2 times --replicas 3 is 6"));
}

}  // namespace
}  // namespace pipelag
