// --split, --profile and --layer-times as a user gives them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/tools/command.h"

namespace pipelag {
namespace {

using testing::HasSubstr;

constexpr char kTimes[] =
    "layer,forward_ms,backward_input_ms,backward_weight_ms,weight_bytes,activation_bytes,"
    "message_bytes\n"
    "embedding,1,0,1,1000,10,8000000\n"
    "a,2,2,2,100,10,8000000\nb,2,2,2,100,10,8000000\nc,2,2,2,100,10,4000000\n"
    "d,2,2,2,100,10,8000000\nhead,6,6,6,1000,10,0\n";

TEST(Split, EvenByHandAndAuto) {
  const Workplace place;
  place.Write("times.csv", kTimes);
  const std::string command =
      "simulate --layer-times times.csv --schedule 1f1b --ranks 2 --microbatches 8 --format json ";
  const auto even = Json(place.Pipelag(command));
  EXPECT_EQ(even["split"]["layers"], (std::vector<int>{2, 2}));
  EXPECT_EQ(even["split"]["bottleneck_ns"], 30'000'000);
  EXPECT_EQ(even, Json(place.Pipelag(command + "--split even")));
  EXPECT_EQ(even["step_time_ns"], Json(place.Pipelag(command + "--split 2,2"))["step_time_ns"]);
  const auto best = Json(place.Pipelag(command + "--split auto"));
  EXPECT_EQ(best["split"]["by"], "auto");
  EXPECT_EQ(best["split"]["layers"], (std::vector<int>{3, 1}));
  EXPECT_EQ(best["split"]["bottleneck_ns"], 24'000'000);
  EXPECT_LT(best["step_time_ns"], even["step_time_ns"]);
  EXPECT_EQ(best["per_rank"][0]["busy_ns"], 8 * 20'000'000);
  EXPECT_THAT(place
                  .Pipelag("simulate --layer-times times.csv --schedule 1f1b --ranks 2 "
                           "--microbatches 8 --split auto")
                  .out,
              HasSubstr("1f1b: split auto: 3,1 layers; rank 1 is the slowest with 24.00 ms"));
}

/// Behind c passes half of what passes elsewhere.
TEST(Split, MessagesAreAsLargeAsWhatPassesTheCut) {
  const Workplace place;
  place.Write("times.csv", kTimes);
  const std::string command =
      "simulate --layer-times times.csv --schedule 1f1b --ranks 2 --microbatches 2 --format json "
      "--p2p-bandwidth 1GB/s --split ";
  const auto small = Json(place.Pipelag(command + "3,1"));
  const auto large = Json(place.Pipelag(command + "2,2"));
  EXPECT_EQ(small["per_rank"][1]["transfer_ns"], 2 * 4'000'000);
  EXPECT_EQ(large["per_rank"][1]["transfer_ns"], 2 * 8'000'000);
  const auto three = Json(place.Pipelag(
      "simulate --layer-times times.csv --schedule 1f1b --ranks 3 --microbatches 1 --format json "
      "--p2p-bandwidth 1GB/s --split 2,1,1"));
  EXPECT_EQ(three["per_rank"][1]["transfer_ns"], 8'000'000 + 4'000'000);
  EXPECT_EQ(three["per_rank"][2]["transfer_ns"], 4'000'000);
}

TEST(Split, KeepsToTheMemory) {
  const Workplace place;
  place.Write("times.csv", kTimes);
  const std::string command =
      "simulate --layer-times times.csv --schedule 1f1b --ranks 2 --microbatches 8 --split auto "
      "--device-memory ";
  // Rank 0 holds two micro-batches' activations of each of its layers, the messages' slots beside.
  EXPECT_EQ(Json(place.Pipelag(command + "1GB --format json"))["split"]["layers"],
            (std::vector<int>{3, 1}));
  const Outcome none = place.Pipelag(command + "1KB");
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.err, HasSubstr("times.csv: no split fits: even the leanest needs"));
}

TEST(Split, ReadsPipeDreamsProfiles) {
  const Workplace place;
  place.Write("graph.txt",
              "node1 -- Input -- forward_compute_time=100.0, backward_compute_time=0.0, "
              "activation_size=9.0, parameter_size=0.0\n"
              "node2 -- Linear(1) -- forward_compute_time=1.0, backward_compute_time=2.0, "
              "activation_size=1000.0, parameter_size=10.0\n"
              "node3 -- ReLU() -- forward_compute_time=1.0, backward_compute_time=2.0, "
              "activation_size=1000.0, parameter_size=0.0\n"
              "node4 -- Linear(2) -- forward_compute_time=2.0, backward_compute_time=4.0, "
              "activation_size=1000.0, parameter_size=10.0\n"
              "\tnode1 -- node2\n\tnode2 -- node3\n\tnode3 -- node4\n");
  const auto run = Json(place.Pipelag(
      "simulate --profile graph.txt --split auto --schedule pipedream --ranks 2 --microbatches 1 "
      "--format json"));
  EXPECT_EQ(run["split"]["layers"], (std::vector<int>{2, 1}));
  EXPECT_EQ(run["step_time_ns"], 6'000'000);
  EXPECT_EQ(place
                .Pipelag("simulate --profile graph.txt --schedule zb-h1 --ranks 2 --microbatches "
                         "4")
                .exit_code,
            2);  // it does not know a backward's halves
}

TEST(Split, OfAModelFollowsItsTimes) {
  const Workplace place;
  const std::string command =
      "simulate --model gpt2 --machine dgx-a100 --schedule 1f1b --ranks 4 --microbatches 8 "
      "--microbatch 4 --sequence 1024 --format json ";
  const auto even = Json(place.Pipelag(command));
  const auto best = Json(place.Pipelag(command + "--split auto"));
  int blocks = 0;
  std::string text;
  for (const auto& count : best["split"]["layers"]) {
    blocks += count.get<int>();
    text += (text.empty() ? "" : ",") + std::to_string(count.get<int>());
  }
  EXPECT_EQ(blocks, 12);
  EXPECT_LT(best["split"]["layers"][3], 3);  // the head is there too
  EXPECT_LT(best["step_time_ns"], even["step_time_ns"]);
  EXPECT_EQ(Json(place.Pipelag(command + "--split " + text))["step_time_ns"], best["step_time_ns"]);
}

TEST(Split, OfAModelKeepsToTheMemory) {
  const Workplace place;
  const std::string command =
      "simulate --model gpt2 --machine dgx-a100 --schedule 1f1b --ranks 4 --microbatches 8 "
      "--microbatch 4 --sequence 1024 --split auto --device-memory ";
  EXPECT_EQ(place.Pipelag(command + "40GiB").exit_code, 0);
  const Outcome none = place.Pipelag(command + "100MiB");
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.err, HasSubstr("no split fits: even the leanest needs"));
  // By hand it is simulated, and found not to fit.
  const Outcome by_hand = place.Pipelag(
      "simulate --model gpt2 --machine dgx-a100 --schedule 1f1b --ranks 4 --microbatches 8 "
      "--split 3,3,3,3 --device-memory 100MiB");
  EXPECT_EQ(by_hand.exit_code, 1) << by_hand.err;
  EXPECT_THAT(by_hand.out, HasSubstr("more than its device's 100.0 MiB"));
}

/// One rule for both, and a line that says who has what for every split.
TEST(Split, LeavesEndsAloneByHandWhereverTheyAre) {
  const Workplace place;
  place.Write("times.csv", kTimes);
  for (const char* network :
       {"--layer-times times.csv", "--model gpt2 --layers 4 --machine dgx-a100"}) {
    const std::string command =
        "simulate --schedule 1f1b --ranks 4 --microbatches 4 " + std::string(network);
    for (const char* split : {"0,2,2,0", "0,1,1,2", "1,1,2,0", "1,1,1,1"}) {
      const Outcome outcome = place.Pipelag(command + " --split " + split);
      EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
      EXPECT_THAT(outcome.out,
                  HasSubstr("1f1b: split by hand: " + std::string(split) + " layers; rank "));
    }
    EXPECT_THAT(place.Pipelag(command).out, HasSubstr("1f1b: split even: 1,1,1,1 layers; rank "));
    for (const char* split : {"2,0,1,1", "0,2,0,2", "0,0,2,2", "0,4,0,0"}) {
      EXPECT_EQ(place.Pipelag(command + " --split " + split).exit_code, 2) << split;
    }
  }
}

TEST(Split, RefusesWhatDoesNotGoTogether) {
  const Workplace place;
  place.Write("times.csv", kTimes);
  const auto error = [&](const std::string& rest) {
    const Outcome outcome =
        place.Pipelag("simulate --schedule 1f1b --ranks 2 --microbatches 4 " + rest);
    EXPECT_EQ(outcome.exit_code, 2) << rest;
    return outcome.err;
  };
  EXPECT_THAT(error("--layer-times times.csv --forward 1ms"),
              HasSubstr("--forward: the layers of --layer-times have their own"));
  EXPECT_THAT(error("--layer-times times.csv --profile times.csv"), HasSubstr("have their own"));
  EXPECT_THAT(error("--layer-times times.csv --split 1,2"),
              HasSubstr("the split gives out 3 layers, but the network has 4"));
  EXPECT_THAT(error("--layer-times times.csv --split 1,2,1"),
              HasSubstr("names 3 stages, but there are 2"));
  for (const char* flag : {"--data 2", "--recompute full", "--tensor 2", "--layers 4", "--zero 1",
                           "--model gpt2 --machine dgx-a100", "--optimizer adamw"}) {
    EXPECT_THAT(error("--layer-times times.csv " + std::string(flag)),
                HasSubstr("the layers of --layer-times have their times whatever it says"));
  }
  for (const char* split : {"2,2", "auto", "even"}) {
    EXPECT_THAT(error("--split " + std::string(split)), HasSubstr("needs the times of layers"));
  }
  EXPECT_THAT(error("--layer-times nothing.csv"), HasSubstr("nothing.csv"));
  EXPECT_THAT(error("--profile times.csv"), HasSubstr("times.csv:1: expected a node"));
}

}  // namespace
}  // namespace pipelag
