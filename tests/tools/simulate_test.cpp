// `pipelag simulate` from the outside: the figures of the contract, jobs, several schedules.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "tests/tools/command.h"

namespace pipelag {
namespace {

using nlohmann::json;
using testing::HasSubstr;

json Simulate(const Workplace& place, const std::string& flags) {
  const Outcome outcome = place.Pipelag("simulate --format json " + flags);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  return json::parse(outcome.out);
}

std::vector<int> InFlight(const json& result) {
  std::vector<int> peaks;
  for (const json& rank : result.at("per_rank")) peaks.push_back(rank.at("peak_in_flight"));
  return peaks;
}

TEST(Simulate, TheExampleOfTheContract) {
  const Workplace place;
  const std::string rest = " --ranks 4 --microbatches 8 --forward 1ms --backward 2ms";
  for (const char* schedule : {"1f1b", "gpipe"}) {
    const json result = Simulate(place, std::string("--schedule ") + schedule + rest);
    EXPECT_EQ(result.at("schedule"), schedule);
    EXPECT_EQ(result.at("ranks"), 4);
    EXPECT_EQ(result.at("stages"), 4);
    EXPECT_EQ(result.at("microbatches"), 8);
    EXPECT_EQ(result.at("steps"), 1);
    EXPECT_EQ(result.at("makespan_ns"), 33000000);
    EXPECT_EQ(result.at("step_time_ns"), 33000000);
    EXPECT_EQ(result.at("step_time_exact"), json({33000000, 1}));
    EXPECT_EQ(result.at("bubble").at("idle_of_makespan").get<double>(), 3.0 / 11.0);
    EXPECT_EQ(result.at("bubble").at("idle_over_ideal").get<double>(), 3.0 / 8.0);
    EXPECT_EQ(result.at("bubble").at("of_span").get<double>(), 3.0 / 11.0);
    EXPECT_EQ(result.at("bubble").at("steady_state").get<double>(), 3.0 / 11.0);
    for (const json& rank : result.at("per_rank")) {
      EXPECT_EQ(rank.at("busy_ns"), 24000000);
      EXPECT_EQ(rank.at("idle_ns"), 9000000);
      EXPECT_TRUE(rank.contains("wait_ns") && rank.contains("transfer_ns"));
    }
    for (const json& stage : result.at("per_stage")) {
      EXPECT_EQ(stage.at("gradient_delay"), 0);
      EXPECT_EQ(stage.at("gradient_delay_min"), 0);
      EXPECT_EQ(stage.at("backward_delay"), 0);
      EXPECT_EQ(stage.at("weight_versions"), 1);
    }
    EXPECT_EQ(InFlight(result), std::string(schedule) == "gpipe" ? std::vector({8, 8, 8, 8})
                                                                 : std::vector({4, 3, 2, 1}));
  }
}

TEST(Simulate, TimesNobodyGaveAreSaid) {
  const Workplace place;
  const std::string command = "--schedule 1f1b --ranks 4 --microbatches 8";
  EXPECT_EQ(Simulate(place, command).at("makespan_ns"), 33000000);
  EXPECT_THAT(place.Pipelag("simulate " + command).out, HasSubstr("defaults: forward 1ms"));
}

TEST(Simulate, RunsLeaveTheWarmUpByThemselves) {
  const Workplace place;
  EXPECT_EQ(Simulate(place, "--schedule 2bw --ranks 4 --microbatches 8").at("steps"), 11);
  EXPECT_EQ(Simulate(place, "--schedule pipedream --ranks 4 --microbatches 1").at("steps"), 16);
  EXPECT_EQ(Simulate(place, "--schedule gpipe --ranks 4 --microbatches 1").at("steps"), 1);
  EXPECT_EQ(Simulate(place, "--schedule 2bw --ranks 4 --microbatches 8 --steps 3").at("steps"), 3);
}

TEST(Simulate, TimesPerStageAndSplitBackward) {
  const Workplace place;
  const json one = Simulate(place,
                            "--schedule gpipe --ranks 3 --microbatches 1 "
                            "--forward 1ms,2ms,4ms --backward 10us --p2p-latency 1us");
  EXPECT_EQ(one.at("makespan_ns"), 7'030'000 + 4'000);
  const json split = Simulate(place,
                              "--schedule gpipe --ranks 2 --microbatches 1 --forward 1us "
                              "--backward-input 2us --backward-weight 3us");
  EXPECT_EQ(split.at("makespan_ns"), 12'000);
  const json wire = Simulate(place,
                             "--schedule gpipe --ranks 2 --microbatches 1 --forward 1us "
                             "--backward 1us --activation-bytes 1KB --p2p-bandwidth 1GB/s");
  EXPECT_EQ(wire.at("makespan_ns"), 6'000);
}

TEST(Simulate, GroupsWaitForEachOther) {
  const Workplace place;
  const std::string base =
      "--schedule 2bw --ranks 4 --microbatches 8 --forward 1us --backward 2us ";
  EXPECT_EQ(Simulate(place, base + "--clip-norm 1.0").at("step_time_ns"), 24000);
  EXPECT_EQ(Simulate(place, base + "--clip-norm").at("step_time_ns"), 24000);
  EXPECT_EQ(Simulate(place, base + "--clip-norm --update-placement early").at("step_time_ns"),
            30000);
  const std::string reduced = base + "--update 50ns --reduction 1500ns --update-placement ";
  EXPECT_EQ(Simulate(place, reduced + "early").at("step_time_ns"), 25550);
  EXPECT_EQ(Simulate(place, reduced + "late").at("step_time_ns"), 24050);
  EXPECT_EQ(Simulate(place, "--schedule 1f1b --ranks 4 --microbatches 8 --flush-barrier global")
                .at("step_time_ns"),
            33000000);
}

TEST(Simulate, SeveralSideBySideInOrder) {
  const Workplace place;
  const std::string flags = "--schedule 2bw,gpipe,1f1b --ranks 4 --microbatches 8";
  const json results = Simulate(place, flags).at("results");
  ASSERT_EQ(results.size(), 3u);
  EXPECT_EQ(results[0].at("schedule"), "2bw");
  EXPECT_EQ(results[1], Simulate(place, "--schedule gpipe --ranks 4 --microbatches 8"));
  EXPECT_EQ(results[2].at("schedule"), "1f1b");
  const Outcome text = place.Pipelag("simulate --p2p-latency 8us " + flags);
  EXPECT_THAT(text.out, HasSubstr("what limits the step time: "));
  EXPECT_THAT(text.out, HasSubstr("their messages' time included"));
  EXPECT_EQ(place.Pipelag("simulate --trace all.json " + flags).exit_code, 0);
  EXPECT_THAT(place.Read("all.json"), HasSubstr("2bw rank 0"));
  EXPECT_THAT(place.Read("all.json"), HasSubstr("1f1b rank 3"));
}

TEST(Simulate, DrawsASmallRunExactly) {
  const Workplace place;
  const Outcome outcome = place.Pipelag(
      "simulate --schedule 1f1b --ranks 2 --microbatches 3 --forward 1ms --backward 2ms");
  const auto picture = [](const std::string& per_millisecond) {
    std::string columns;
    for (const char c : per_millisecond) columns += std::string(7, c);
    return columns;
  };
  EXPECT_THAT(outcome.out, testing::StartsWith("rank 0   " + picture("01..aa2bb.cc") +
                                               "\nrank 1   " + picture(".0aa1bb2cc..") + '\n'));
  EXPECT_THAT(outcome.out, HasSubstr("exact: 7 columns are 1.00 ms\n"));
  EXPECT_EQ(outcome.out.find('\033'), std::string::npos);
}

TEST(Simulate, AFlagOverridesTheJob) {
  const Workplace place;
  place.Write("job.json", R"({"schedule": "1f1b", "ranks": 4, "microbatches": 8,
      "forward": ["1ms", "1ms", "1ms", "1ms"], "backward": "2ms", "format": "json",
      "clip-norm": false})");
  const json as_it_is = json::parse(place.Pipelag("simulate job.json").out);
  EXPECT_EQ(as_it_is.at("makespan_ns"), 33000000);
  const json changed = json::parse(place.Pipelag("simulate job.json --backward 1ms").out);
  EXPECT_EQ(changed.at("makespan_ns"), 22000000);
  const json several = json::parse(place.Pipelag("simulate --schedule gpipe,1f1b job.json").out);
  EXPECT_EQ(several.at("results").size(), 2u);
  place.Write("list.json", R"({"schedule": ["gpipe", "1f1b"], "ranks": "2", "microbatches": 2,
      "clip-norm": true, "format": "json"})");
  EXPECT_EQ(json::parse(place.Pipelag("simulate list.json").out).at("results").size(), 2u);
}

TEST(Help, NamesEveryFlagOnce) {
  const Workplace place;
  for (const char* subcommand : {"simulate", "run", "calibrate", "compare", "analyze", "schedule",
                                 "converge", "time-to-loss", "list"}) {
    const Outcome help = place.Pipelag(std::string(subcommand) + " --help");
    EXPECT_EQ(help.exit_code, 0) << subcommand;
    std::multiset<std::string> flags;
    std::istringstream lines(help.out);
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("  --")) flags.insert(line.substr(2, line.find(' ', 2) - 2));
    }
    EXPECT_GE(flags.size(), 2u) << subcommand;
    for (const std::string& flag : flags) EXPECT_EQ(flags.count(flag), 1u) << subcommand << flag;
  }
}

}  // namespace
}  // namespace pipelag
