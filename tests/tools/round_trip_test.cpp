// What one subcommand writes another reads: schedules as CSV, traces, cost files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/tools/command.h"

namespace pipelag {
namespace {

using nlohmann::json;
using testing::HasSubstr;

TEST(RoundTrip, AnExportedScheduleSimulatesAlike) {
  const Workplace place;
  const std::string times =
      " --forward 3ms --backward-input 3ms --backward-weight 2ms --backward 5ms --p2p-latency 70us "
      "--format json";
  for (const std::string schedule : {"gpipe", "1f1b", "zb-h1", "pipedream", "paci", "2bw"}) {
    const std::string flags = " --schedule " + schedule + " --ranks 4 --microbatches 6";
    ASSERT_EQ(place.Pipelag("schedule --export x.csv" + flags).exit_code, 0);
    json original = Json(place.Pipelag("simulate" + flags + times));
    json imported = Json(place.Pipelag("simulate --schedule x.csv" + times));
    if (schedule == "gpipe" || schedule == "1f1b" || schedule == "zb-h1") {
      EXPECT_EQ(imported.at("schedule"), "x") << "a complete CSV has no name but its file's";
      imported["schedule"] = schedule;
    }
    original.erase("latency_hidden_by");  // a hint on how to generate it
    EXPECT_EQ(original, imported) << schedule;
    json grid = Json(place.Pipelag("schedule --format json" + flags));
    json grid_again = Json(place.Pipelag("schedule --format json --schedule x.csv"));
    EXPECT_EQ(grid.at("per_rank"), grid_again.at("per_rank"));
    EXPECT_EQ(grid.at("per_stage"), grid_again.at("per_stage"));
    place.Remove("x.csv");
    place.Remove("x.json");
  }
}

TEST(RoundTrip, AFlagMayNotContradictAFile) {
  const Workplace place;
  place.Write("x.csv", "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  EXPECT_EQ(place.Pipelag("simulate --schedule x.csv --ranks 2 --microbatches 2").exit_code, 0);
  for (const char* flag : {"--ranks 3", "--microbatches 3", "--warmup-slope 2", "--clip-norm",
                           "--reduction 1ms", "--flush-barrier global"}) {
    const Outcome outcome = place.Pipelag(std::string("simulate --schedule x.csv ") + flag);
    EXPECT_EQ(outcome.exit_code, 2) << flag;
    EXPECT_THAT(outcome.err, HasSubstr("x.csv"));
  }
}

TEST(RoundTrip, ASimulatedTraceGivesItsCostsBack) {
  const Workplace place;
  const std::string flags = "simulate --schedule 2bw --ranks 4 --microbatches 8 --steps 12 ";
  const std::string costs =
      "--forward 1ms,2ms,1500us,1ms --backward 2ms,4ms,3001us,2ms --update 100us,0,7ns,1us "
      "--p2p-latency 10us --activation-bytes 4KiB ";
  ASSERT_EQ(place.Pipelag(flags + costs + "--trace measured.json").exit_code, 0);
  const json written = Json(place.Pipelag("calibrate measured.json -o costs.json --format json"));
  EXPECT_EQ(written, json::parse(place.Read("costs.json")));
  EXPECT_EQ(written.at("forward_ns"), json({1000000, 2000000, 1500000, 1000000}));
  EXPECT_EQ(written.at("backward_ns"), json({2000000, 4000000, 3001000, 2000000}));
  EXPECT_EQ(written.at("update_ns"), json({100000, 0, 7, 1000}));
  EXPECT_EQ(written.at("p2p_latency_ns"), 10000);
  EXPECT_EQ(written.at("activation_bytes"), 4096);

  ASSERT_EQ(place.Pipelag(flags + "--costs costs.json --trace simulated.json").exit_code, 0);
  const std::string compare = "compare measured.json simulated.json --tolerance 0 ";
  const json comparison = Json(place.Pipelag(compare + "--format json"));
  EXPECT_EQ(comparison.at("step_time").at("error"), 0.0);
  EXPECT_EQ(comparison.at("actions").at("joined"), 4 * 11 * 17);
  EXPECT_EQ(comparison.at("actions").at("only_measured"), 0);
  for (const json& row : comparison.at("rows")) EXPECT_EQ(row.at("error"), 0.0) << row;
  EXPECT_THAT(place.Pipelag(compare).out, HasSubstr("within the tolerance of 0 %"));

  ASSERT_EQ(place
                .Pipelag(flags + "--costs costs.json --forward 2ms,3ms,2ms,2ms "
                                 "--trace simulated.json")
                .exit_code,
            0);
  EXPECT_EQ(place.Pipelag(compare).exit_code, 1);
  EXPECT_EQ(place.Pipelag("compare measured.json simulated.json --tolerance 50").exit_code, 0);
  EXPECT_EQ(place.Pipelag("compare measured.json simulated.json").exit_code, 0);
}

TEST(RoundTrip, ATraceOfReplicasGivesTheCostsOfOne) {
  const Workplace place;
  const std::string flags = "--schedule 1f1b --ranks 2 --microbatches 4 --replicas 2 ";
  ASSERT_EQ(place.Pipelag("run --compute emulated --steps 3 " + flags + "--trace measured.json")
                .exit_code,
            0);
  const json written = Json(place.Pipelag("calibrate measured.json -o costs.json --format json"));
  EXPECT_EQ(written.at("forward_ns").size(), 2u);
  EXPECT_EQ(place.Pipelag("simulate " + flags + "--costs costs.json --trace one.json").exit_code,
            0);
  const Outcome outcome = place.Pipelag("compare measured.json one.json");
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("4 ranks in all, 2 replicas"));
}

TEST(RoundTrip, AnalysisOfASimulatedTraceIsTheSimulation) {
  const Workplace place;
  for (const char* schedule : {"gpipe", "1f1b", "pipedream", "2bw"}) {
    const std::string command = std::string("simulate --schedule ") + schedule +
                                " --ranks 4 --microbatches 4 --steps 14 --p2p-latency 3us "
                                "--update 1us --trace trace.json --format json";
    const json simulated = Json(place.Pipelag(command));
    const json analyzed = Json(place.Pipelag("analyze trace.json --format json"));
    for (const auto& [key, value] : analyzed.items()) {
      if (key != "file" && key != "step_time_exact" && key != "step_time_ns" && key != "bubble") {
        EXPECT_EQ(value, simulated.at(key)) << schedule << ' ' << key;
      }
    }
    for (const char* bubble : {"idle_of_makespan", "idle_over_ideal", "of_span"}) {
      EXPECT_EQ(analyzed.at("bubble").at(bubble), simulated.at("bubble").at(bubble)) << schedule;
    }
  }
  EXPECT_EQ(Json(place.Pipelag("analyze trace.json trace.json --format json")).at("results").size(),
            2u);
  EXPECT_THAT(place.Pipelag("analyze trace.json").out, HasSubstr("makespan"));
}

TEST(Help, EverySubcommandHasIt) {
  const Workplace place;
  const Outcome overview = place.Pipelag("--help");
  EXPECT_EQ(overview.exit_code, 0);
  for (const char* subcommand :
       {"simulate", "run", "calibrate", "compare", "analyze", "schedule", "list"}) {
    EXPECT_THAT(overview.out, HasSubstr(std::string("\n  ") + subcommand + ' '));
    const Outcome help = place.Pipelag(std::string(subcommand) + " --help");
    EXPECT_EQ(help.exit_code, 0) << subcommand;
    EXPECT_EQ(help.err, "");
    EXPECT_THAT(help.out, HasSubstr(std::string("usage: pipelag ") + subcommand));
    EXPECT_THAT(help.out, HasSubstr("--format"));
  }
  const Outcome version = place.Pipelag("--version");
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_EQ(version.out, "pipelag " PIPELAG_VERSION "\n");
}

TEST(List, NamesTheSchedules) {
  const Workplace place;
  const json list = Json(place.Pipelag("list --format json"));
  std::vector<std::string> names;
  for (const json& schedule : list.at("schedules")) names.push_back(schedule.at("name"));
  EXPECT_THAT(names, testing::IsSupersetOf({"gpipe", "1f1b", "pipedream", "2bw"}));
  for (const std::string& name : names) {
    EXPECT_THAT(place.Pipelag("list").out, HasSubstr("\n  " + name + ' '));
  }
}

}  // namespace
}  // namespace pipelag
