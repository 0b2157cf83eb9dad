// `pipelag converge` and `pipelag time-to-loss`: a tiny study end to end, taken up where it
// stopped, and how both end on bad input.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/tools/command.h"

namespace pipelag {
namespace {

constexpr std::string_view kTiny =
    "converge --layers 2 --hidden 16 --heads 2 --sequence 8 --microbatch-size 2 --microbatches 2"
    " --steps 40 --validation-microbatches 2 --jobs 2 --output . ";

Outcome Converge(const Workplace& place, const std::string& flags) {
  return place.Pipelag(std::string(kTiny) + flags);
}

/// Files of runs and their contents.
std::vector<std::pair<std::string, std::string>> RunsIn(const Workplace& place) {
  std::vector<std::pair<std::string, std::string>> runs;
  for (const std::string& name : place.Files()) {
    if (name.ends_with(".json")) runs.emplace_back(name, place.Read(name));
  }
  return runs;
}

const nlohmann::json& Row(const nlohmann::json& rows, const std::string& delay,
                          const std::string& correction) {
  return *std::find_if(rows.begin(), rows.end(), [&](const nlohmann::json& row) {
    return row.at("delay") == delay && row.at("correction") == correction;
  });
}

TEST(Converge, StudiesAndTakesUpWhereItStopped) {
  const Workplace place;
  const std::string grid =
      "--optimizer adamw,muon --delay 0,1,1:0 --seed 1,2 --learning-rate 0.01 --format json "
      "--curves curves.csv --table table.csv --plot plot.svg";
  const Outcome first = Converge(place, grid);
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(first.err, "");
  const auto runs = RunsIn(place);
  // Per optimizer and seed: synchronous, and two profiles with and without the correction.
  EXPECT_EQ(runs.size(), 20u);
  EXPECT_EQ(Lines(place.Read("curves.csv")), 1 + 20u * 40);
  EXPECT_EQ(Lines(place.Read("table.csv")), 1 + 2 * 10u);
  EXPECT_THAT(place.Read("plot.svg"), testing::HasSubstr("delay 1, error-feedback"));
  const nlohmann::json json = nlohmann::json::parse(first.out);
  EXPECT_EQ(json.at("rows").size(), 10u);
  const nlohmann::json& late = Row(json.at("rows"), "1", "none");
  EXPECT_EQ(late.at("runs"), 2);
  EXPECT_NEAR(late.at("gap").at("mean").get<double>(),
              late.at("validation_loss").at("mean").get<double>() -
                  Row(json.at("rows"), "0", "none").at("validation_loss").at("mean").get<double>(),
              1e-9);

  // Again: nothing is trained, everything is the same.
  EXPECT_EQ(Converge(place, grid).out, first.out);
  EXPECT_EQ(RunsIn(place), runs);
  // One file gone: that run is done again, to the last bit.
  place.Remove(runs[3].first);
  EXPECT_EQ(Converge(place, grid).out, first.out);
  EXPECT_EQ(RunsIn(place), runs);
  // Another setting: other files beside them.
  EXPECT_EQ(
      Converge(place, "--optimizer adamw --delay 0 --learning-rate 0.01 --clip-norm 1").exit_code,
      0);
  EXPECT_EQ(RunsIn(place).size(), 21u);
}

TEST(Converge, ReusesNothingThatIsNotExactlyThatRun) {
  const Workplace place;
  const std::string grid = "--optimizer adamw --delay 0 --learning-rate 0.01 --seed 1,2";
  ASSERT_EQ(Converge(place, grid).exit_code, 0);
  const auto runs = RunsIn(place);
  ASSERT_EQ(runs.size(), 2u);
  for (const std::string& bad :
       {std::string("{"), std::string("{}"), runs[0].second.substr(0, 200), runs[1].second}) {
    place.Write(runs[0].first, bad);
    const Outcome outcome = Converge(place, grid);
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(outcome.err, testing::HasSubstr(runs[0].first));
    EXPECT_EQ(Lines(outcome.err), 1u);
  }
}

TEST(Converge, ScheduleAndItsDelaysByHandAreOne) {
  const Workplace place;
  const Outcome outcome =
      Converge(place,
               "--optimizer adamw --delay 1,2bw@2x2,1:0,pipedream@2x1 --correction none "
               "--format json");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const nlohmann::json rows = nlohmann::json::parse(outcome.out).at("rows");
  EXPECT_EQ(Row(rows, "1", "none").at("train_loss"), Row(rows, "2bw@2x2", "none").at("train_loss"));
  EXPECT_NEAR(Row(rows, "1:0", "none").at("train_loss").at("mean").get<double>(),
              Row(rows, "pipedream@2x1", "none").at("train_loss").at("mean").get<double>(), 1e-4);
}

TEST(Converge, MarksWhatDiverged) {
  const Workplace place;
  const std::string grid = "--optimizer sgd --delay 0,1 --correction none --learning-rate 1000 ";
  const Outcome text = Converge(place, grid);
  ASSERT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out, testing::HasSubstr("diverged (1 of 1)"));
  EXPECT_EQ(text.out.find("nan"), std::string::npos);
  const nlohmann::json rows = nlohmann::json::parse(Converge(place, grid + "--format json").out);
  EXPECT_EQ(rows.at("rows")[0].at("diverged"), 1);
  EXPECT_TRUE(rows.at("rows")[0].at("validation_loss").is_null());
}

TEST(Converge, BadInputEndsWithOneSentence) {
  const Workplace place;
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"--optimizer adamw,adam", "adamw"},
      {"--correction none,error", "there is no correction"},
      {"--delay -1", "'-1'"},
      {"--delay 0,1:-1", "'1:-1'"},
      {"--delay 1:2:3 --ranks 2", "names 3 stages, but there are 2"},
      {"--delay 1:0,1:0:0", "'1:0:0'"},
      {"--delay one", "'one'"},
      {"--delay 3bw@2x2", "2bw"},
      {"--delay 2bw@2", "RANKSxMICROBATCHES"},
      {"--delay 2bw@2x3", "3 micro-batches"},
      {"--learning-rate 0", "--learning-rate"},
      {"--learning-rate 0.1,fast", "--learning-rate: "},
      {"--seed 1,-1", "--seed"},
      {"--seed 1,1", "twice"},
      {"--clip-norm -1", "--clip-norm"},
      {"--correction basis-rotation --optimizer muon", "adamw"},
      {"--data nowhere.txt", "nowhere.txt"},
      {"--table nowhere/table.csv", "nowhere"},
  };
  for (const auto& [flags, expected] : cases) {
    const Outcome outcome = Converge(place, flags);
    EXPECT_EQ(outcome.exit_code, 2) << flags;
    EXPECT_THAT(outcome.err, testing::HasSubstr(expected)) << flags;
    EXPECT_EQ(Lines(outcome.err), 1u) << outcome.err;
    EXPECT_EQ(outcome.out, "") << flags;
  }
  EXPECT_TRUE(place.Files().empty());
}

TEST(TimeToLoss, FromCsvAndFolderAlike) {
  const Workplace place;
  ASSERT_EQ(
      Converge(place, "--optimizer adamw --seed 1,2 --curves c.csv --learning-rate 0.01").exit_code,
      0);
  const std::string job =
      " --target 4.5 --schedule 1f1b,2bw --ranks 2 --microbatches 4 --format json";
  const Outcome csv = place.Pipelag("time-to-loss --curves c.csv" + job);
  ASSERT_EQ(csv.exit_code, 0) << csv.err;
  const nlohmann::json json = nlohmann::json::parse(csv.out);
  ASSERT_EQ(json.at("times").size(), 3u);  // 1f1b; 2bw without and with the correction
  for (const nlohmann::json& row : json.at("times")) {
    ASSERT_TRUE(row.at("reached").get<bool>());
    EXPECT_NEAR(row.at("seconds").at("mean").get<double>(),
                row.at("steps").at("mean").get<double>() * row.at("step_time_s").get<double>(),
                1e-9);
  }
  EXPECT_EQ(json.at("payoffs").size(), 2u);
  EXPECT_NEAR(json.at("payoffs")[0].at("throughput_gain").get<double>(), 15.0 / 12, 1e-9);
  const Outcome folder = place.Pipelag("time-to-loss --curves ." + job);
  EXPECT_EQ(folder.exit_code, 0) << folder.err;
  const Outcome given = place.Pipelag(
      "time-to-loss --curves c.csv --target 4.5 --step-time 1f1b=15ms,2bw=12ms --ranks 2 "
      "--microbatches 4 --format json");
  EXPECT_EQ(given.out, csv.out);
}

TEST(TimeToLoss, BadInputEndsWithOneSentence) {
  const Workplace place;
  ASSERT_EQ(Converge(place, "--optimizer adamw --delay 0 --curves c.csv").exit_code, 0);
  const std::string job = " --ranks 2 --microbatches 4 ";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"--curves c.csv --target low --schedule 1f1b" + job, "--target"},
      {"--curves c.csv --target 3 --schedule 2bw" + job, "no curves for 2bw"},
      {"--curves none.csv --target 3 --schedule 1f1b" + job, "none.csv"},
      {"--curves c.csv --target 3 --step-time 1f1b" + job, "SCHEDULE=TIME"},
      {"--curves c.csv --target 3 --step-time 1f1b=0" + job, "no time"},
      {"--curves c.csv --schedule 1f1b" + job, "--target is missing"},
  };
  for (const auto& [flags, expected] : cases) {
    const Outcome outcome = place.Pipelag("time-to-loss " + flags);
    EXPECT_EQ(outcome.exit_code, 2) << flags;
    EXPECT_THAT(outcome.err, testing::HasSubstr(expected)) << flags;
    EXPECT_EQ(outcome.out, "") << flags;
  }
}

}  // namespace
}  // namespace pipelag
