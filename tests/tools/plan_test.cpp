// `pipelag plan`: what it finds is what `simulate` says, and the same on any number of processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "tests/tools/command.h"

namespace pipelag {
namespace {

using testing::HasSubstr;

constexpr char kPlan[] =
    "plan --model gpt2 --machine dgx-a100 --nodes 1 --batch 32 --sequence 512 --zero 1 --chunks "
    "1,2 --microbatch 1,2 ";

TEST(Plan, FindsWhatSimulateSays) {
  const Workplace place;
  const auto plan = Json(place.Pipelag(kPlan + std::string("--format json --top 3")));
  EXPECT_EQ(plan["best"].size(), 3u);
  EXPECT_EQ(plan["layouts"].get<int>(),
            plan["do_not_go_together"].get<int>() + plan["do_not_fit"].get<int>() +
                plan["beaten_by_bounds"].get<int>() + plan["simulated"].get<int>());
  const std::string command = plan["command"];
  ASSERT_TRUE(command.starts_with("pipelag simulate "));
  const auto run = Json(place.Pipelag(command.substr(8) + " --format json"));
  EXPECT_EQ(run["step_time_ns"], plan["best"][0]["step_time_ns"]);
  EXPECT_EQ(run["gpus"], 8);
  EXPECT_EQ(run["tokens_per_s_per_gpu"], plan["best"][0]["tokens_per_s_per_gpu"]);
  int64_t memory = 0;
  for (const auto& rank : run["per_rank"]) {
    memory = std::max(memory, rank["peak_memory_bytes"].get<int64_t>());
  }
  EXPECT_EQ(memory, plan["best"][0]["peak_memory_bytes"]);
}

TEST(Plan, SaysWhereALayoutStands) {
  const Workplace place;
  const auto all = Json(place.Pipelag(kPlan + std::string("--format json --top 1000")));
  const auto& best = all["best"];
  const auto wanted = [](const nlohmann::json& row) {
    return row["ranks"] == 4 && row["schedule"] == "1f1b" && row["tensor"] == 2;
  };
  const auto found = std::find_if(best.begin(), best.end(), wanted);
  ASSERT_NE(found, best.end());
  const auto asked = Json(place.Pipelag(
      kPlan + std::string("--format json --top 1 --rank-of pipeline=4,schedule=1f1b,tensor=2")));
  EXPECT_EQ(asked["rank_of"]["place"], found - best.begin() + 1);
  EXPECT_EQ(asked["rank_of"]["step_time_ns"], (*found)["step_time_ns"]);
  EXPECT_LT(asked["simulated"], all["simulated"]);
}

TEST(Plan, IsTheSameOnAnyNumberOfThreadsAndProcesses) {
  const std::string command = kPlan + std::string("--output plan.csv");
  const Workplace alone;
  const Outcome first = alone.Pipelag(command + " --jobs 1");
  ASSERT_EQ(first.exit_code, 0) << first.err;
  const Workplace threads;
  EXPECT_EQ(threads.Pipelag(command + " --jobs 3").out, first.out);
  EXPECT_EQ(threads.Pipelag(command + " --resume").out, first.out);
  EXPECT_EQ(threads.Read("plan.csv"), alone.Read("plan.csv"));
  for (const int size : {2, 3}) {
    const Workplace shared;
    Outcome last;
    for (int rank = size - 1; rank >= 0; --rank) {
      setenv("PMI_RANK", std::to_string(rank).c_str(), 1);
      setenv("PMI_SIZE", std::to_string(size).c_str(), 1);
      last = shared.Pipelag(command);
      EXPECT_EQ(last.exit_code, 0) << last.err;
    }
    unsetenv("PMI_RANK");
    unsetenv("PMI_SIZE");
    EXPECT_EQ(last.out, first.out);
    EXPECT_EQ(shared.Read("plan.csv"), alone.Read("plan.csv"));
    EXPECT_EQ(shared.Files(), std::vector<std::string>{"plan.csv"});
  }
}

TEST(Plan, SaysWhyThereIsNone) {
  const Workplace place;
  const auto error = [&](const std::string& rest) {
    const Outcome outcome = place.Pipelag("plan --machine dgx-a100 --model gpt2 " + rest);
    EXPECT_EQ(outcome.exit_code, 2) << rest;
    EXPECT_EQ(Lines(outcome.err), 1u) << outcome.err;
    return outcome.err;
  };
  EXPECT_THAT(error("--nodes 1"), HasSubstr("--batch is missing"));
  EXPECT_THAT(error("--nodes 1 --batch 8 --memory 100MiB"),
              HasSubstr("no layout fits: even the leanest ("));
  EXPECT_THAT(error("--nodes 1 --batch 8 --memory 100MiB"), HasSubstr("more than the 100.0 MiB"));
  EXPECT_THAT(error("--nodes 1 --batch 7 --tensor 1 --ranks 2"),
              HasSubstr("a batch of 7 sequences cannot be shared out over 8 GPUs"));
  EXPECT_THAT(error("--nodes 1 --batch 8 --tensor 8"), HasSubstr("12"));  // heads
  EXPECT_THAT(error("--nodes 1 --batch 1000tokens --sequence 512"),
              HasSubstr("no whole number of sequences"));
  EXPECT_THAT(error("--nodes 1 --batch 8 --schedule 1fb1"), HasSubstr("the nearest is '1f1b'"));
  EXPECT_THAT(error("--nodes 1 --batch 8 --rank-of tensors=2"),
              HasSubstr("the nearest is 'tensor'"));
  EXPECT_THAT(error("--nodes 1 --batch 8 --rank-of tensor=2,data=3"),
              HasSubstr("there is no such layout"));
}

}  // namespace
}  // namespace pipelag
