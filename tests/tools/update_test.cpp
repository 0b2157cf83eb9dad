// What updates and what they wait for cost, as `pipelag simulate` shows it; what limits a step;
// runs of any length.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/tools/command.h"

namespace pipelag {
namespace {

using nlohmann::json;
using testing::HasSubstr;

json Simulate(const std::string& flags) {
  const Workplace place;
  const Outcome outcome = place.Pipelag("simulate --format json " + flags);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  return json::parse(outcome.out);
}

std::string Text(const std::string& flags) {
  const Workplace place;
  const Outcome outcome = place.Pipelag("simulate " + flags);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  return outcome.out;
}

std::string Refusal(const std::string& flags) {
  const Workplace place;
  const Outcome outcome = place.Pipelag("simulate " + flags);
  EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
  return outcome.err;
}

constexpr const char* kNetwork =
    " --layers 2 --hidden 64 --heads 2 --sequence 32 --vocabulary 100"
    " --device-compute 1TFLOP/s --device-bandwidth 1TB/s";
constexpr const char* kSizes = "--schedule 2bw --ranks 2 --microbatches 4";

TEST(SimulateUpdates, OptimizersGiveThemTheirTime) {
  const json muon = Simulate(std::string(kSizes) + " --optimizer muon" + kNetwork);
  EXPECT_EQ(muon.at("update_ns"), json({76'291, 76'222}));
  EXPECT_EQ(muon.at("step_time_ns"), 4 * 3'000'000 + 76'291);
  const json adamw = Simulate(std::string(kSizes) + " --optimizer adamw" + kNetwork);
  EXPECT_EQ(adamw.at("update_ns").at(0), 2104);
  EXPECT_THAT(Text(std::string(kSizes) + " --optimizer muon" + kNetwork),
              HasSubstr("an update by muon takes 76.29 us, 76.22 us"));
  // What is said outright stands.
  const json said = Simulate(std::string(kSizes) + " --update 5us --optimizer muon" + kNetwork);
  EXPECT_FALSE(said.contains("update_ns"));
  EXPECT_EQ(said.at("step_time_ns"), 12'005'000);
}

TEST(SimulateUpdates, WhatIsMissingIsNamed) {
  EXPECT_THAT(Refusal(std::string(kSizes) + " --optimizer muon"), HasSubstr("--device-compute"));
  EXPECT_THAT(Refusal(std::string(kSizes) + kNetwork), HasSubstr("needs --optimizer"));
  EXPECT_THAT(Refusal(std::string(kSizes) + " --optimizer muo" + kNetwork), HasSubstr("muon"));
  EXPECT_THAT(Refusal(std::string(kSizes) + " --optimizer muon --device-compute 1TB/s"
                                            " --device-bandwidth 1TB/s"),
              HasSubstr("--device-compute: "));
}

TEST(SimulateUpdates, ReductionsFitTheSlackOf2BWOrNot) {
  const std::string flags = "--schedule 2bw --ranks 4 --microbatches 8 --reduction ";
  const json fits = Simulate(flags + "15ms").at("reductions");
  EXPECT_EQ(fits, json({{"hidden", true},
                        {"cost_ns", 0},
                        {"step_time_without_exact", {24'000'000, 1}},
                        {"longest_hidden_ns", 15'000'000},
                        {"too_long_ns", 0}}));
  const json late = Simulate(flags + "17ms").at("reductions");
  EXPECT_EQ(late.at("cost_ns"), 2'000'000);
  EXPECT_EQ(late.at("too_long_ns"), 2'000'000);
  EXPECT_THAT(Text(flags + "15ms"), HasSubstr("are hidden: the step is no longer for them"));
  EXPECT_THAT(Text(flags + "17ms"), HasSubstr("2.00 ms too long for the 15.00 ms"));
  EXPECT_THAT(Text("--schedule 1f1b --ranks 4 --microbatches 8 --reduction 17ms"),
              HasSubstr("make the step 17.00 ms longer: nothing hides them"));
}

TEST(SimulateLimits, AreNamedWithTheirLinks) {
  const std::string flags = "--schedule 1f1b --ranks 3 --microbatches 8 --p2p-latency 100us";
  const json limit = Simulate(flags).at("limited_by");
  EXPECT_EQ(limit.at("ranks"), json({0, 1, 2}));
  EXPECT_EQ(limit.at("links").at(0), json({{"sender", 0}, {"receiver", 1}, {"payload", "SEND_F"}}));
  EXPECT_EQ(limit.at("links").size(), 4);
  EXPECT_THAT(Text(flags), HasSubstr("over links 0→1→2 forward, 2→1→0 backward"));
}

TEST(SimulateLimits, RunsOfAnyLengthEnd) {
  const json run = Simulate(
      "--schedule 2bw --ranks 4 --microbatches 8 --forward 1us --backward 2us --steps 2147483647");
  EXPECT_EQ(run.at("makespan_ns"), 24'000 * int64_t{2147483647} + 9'000);
  EXPECT_EQ(run.at("step_time_ns"), 24'000);
}

TEST(SimulateLimits, MeansAreCalledMeans) {
  const Workplace place;
  place.Write("pair.json",
              R"({"gpus":["a","b"],"links":[{"from":"a","to":"b","bandwidth":"1GB/s"}]})");
  const std::string flags =
      "simulate --format json --schedule 1f1b --ranks 2 --microbatches 4 --cluster pair.json";
  EXPECT_FALSE(json::parse(place.Pipelag(flags).out).contains("step_time_is_mean_of_run"));
  EXPECT_TRUE(
      json::parse(place.Pipelag(flags + " --noise 0.1").out).at("step_time_is_mean_of_run"));
}

TEST(SimulateReductions, ThatTakeNoTimeAreNotCalledHidden) {
  for (const char* flags : {"--schedule 1f1b --ranks 2 --microbatches 4 --replicas 2",
                            "--schedule dualpipe --ranks 2 --microbatches 4"}) {
    const std::string text = Text(flags);
    EXPECT_THAT(text, HasSubstr("take no time; nothing would hide them if they did"));
    EXPECT_THAT(text, testing::Not(HasSubstr("up to 0 ns")));
  }
  EXPECT_THAT(Text("--schedule 2bw --ranks 2 --microbatches 4 --replicas 2"),
              HasSubstr("are hidden: the step is no longer for them, up to 9.00 ms each"));
}

}  // namespace
}  // namespace pipelag
