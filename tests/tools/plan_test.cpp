// `pipelag plan`: what it finds is what `simulate` says, and the same on any number of processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

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

/// A row is what `simulate` says with its command, of dense networks and of experts that `tensor`
/// may cut.
TEST(Plan, EveryRowIsWhatItsCommandSimulates) {
  const Workplace place;
  place.Write("moe.json", R"({"architectures": ["MixtralForCausalLM"], "model_type": "mixtral",
    "hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8,
    "num_key_value_heads": 4, "num_hidden_layers": 4, "num_local_experts": 4,
    "num_experts_per_tok": 2, "vocab_size": 32000, "max_position_embeddings": 2048,
    "tie_word_embeddings": false})");
  for (const char* network :
       {"--model moe.json --tensor 1,2 --expert 1,2", "--model gpt2 --layers 4 --tensor 1,2",
        "--model moe.json --tensor 2 --expert 1,2 --expert-tensor 1"}) {
    const auto plan = Json(place.Pipelag(
        std::string(
            "plan --machine dgx-a100 --nodes 1 --batch 8 --sequence 512 --zero 1,3 "
            "--recompute none,full --chunks 1,2 --microbatch 1 --format json --top 10000 ") +
        network));
    int cut = 0;
    std::set<std::string> commands;
    for (const auto& row : plan["best"]) {
      const std::string command = row["command"];
      EXPECT_TRUE(commands.insert(command).second) << command;
      if (commands.size() % 5 != 1) continue;
      cut += row["tensor"] == 2 ? 1 : 0;
      const auto run = Json(place.Pipelag(command.substr(8) + " --format json"));
      EXPECT_EQ(run["step_time_ns"], row["step_time_ns"]) << command;
      EXPECT_EQ(run["gpus"], 8) << command;
      int64_t memory = 0;
      for (const auto& rank : run["per_rank"]) {
        memory = std::max(memory, rank["peak_memory_bytes"].get<int64_t>());
      }
      EXPECT_EQ(row["peak_memory_bytes"], memory) << command;
    }
    EXPECT_GT(cut, 1);
  }
}

/// Whatever few are asked for, a place that is shown is the place among all.
TEST(Plan, ShowsTruePlacesOrNone) {
  const Workplace place;
  const auto all = Json(place.Pipelag(kPlan + std::string("--format json --top 10000")));
  std::map<std::string, nlohmann::json> places;
  for (const auto& row : all["best"]) places[row["command"]] = row["place"];
  EXPECT_EQ(all["beaten_by_bounds"], 0);
  const auto few = Json(place.Pipelag(kPlan + std::string("--format json --top 1")));
  EXPECT_GT(few["beaten_by_bounds"], 0);
  EXPECT_EQ(few["pareto"].size(), all["pareto"].size());
  int unknown = 0;
  for (const auto& row : few["pareto"]) {
    if (row["place"].is_null()) {
      ++unknown;
    } else {
      EXPECT_EQ(row["place"], places.at(row["command"]));
    }
  }
  EXPECT_EQ(few["pareto"][0]["place"], 1);
  EXPECT_GT(unknown, 0);
  EXPECT_THAT(place.Pipelag(kPlan + std::string("--top 1")).out, HasSubstr("more: --top "));
}

TEST(Plan, IsThereEvenIfWhatIsAskedForDoesNotFit) {
  const Workplace place;
  const std::string command =
      "plan --model Llama-3.1-8B --machine dgx-h100 --nodes 1 --batch 16 --zero 0 "
      "--rank-of data=8,tensor=1,microbatch=2,recompute=none";
  const Outcome outcome = place.Pipelag(command);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("fastest:"));
  EXPECT_THAT(outcome.out, HasSubstr("asked for: does not fit: the leanest such layout ("));
  const auto json = Json(place.Pipelag(command + " --format json"));
  EXPECT_TRUE(json["rank_of"]["place"].is_null());
  EXPECT_THAT(json["rank_of"]["reason"], HasSubstr("does not fit"));
  EXPECT_FALSE(json["best"].empty());
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
  EXPECT_THAT(error("--nodes 1 --batch 8 --ranks 2 --chunks 3 --schedule 1f1b"),
              HasSubstr("none of the schedules 1f1b takes 3 stages on a rank"));
  EXPECT_THAT(error("--nodes 1 --batch 8 --zero 4"), HasSubstr("there is no ZeRO stage 4"));
  EXPECT_THAT(error("--nodes 1 --batch 8 --hidden 123"), HasSubstr("--hidden: "));
  EXPECT_THAT(error("--nodes 1 --batch 8 --expert 8"), HasSubstr("no routed experts"));
  place.Write("job.json", R"({"microbatches": 4})");
  EXPECT_THAT(error("--nodes 1 --batch 8 job.json"), HasSubstr("job.json: /microbatches: follows"));
}

}  // namespace
}  // namespace pipelag
