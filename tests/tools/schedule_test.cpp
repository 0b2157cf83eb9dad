// `pipelag schedule` from the outside: both forms of CSV, and what is wrong with a user's own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "tests/tools/command.h"

namespace pipelag {
namespace {

using nlohmann::json;
using testing::HasSubstr;

TEST(Schedule, ExportsWithCommunicationAndReadsItAnywhere) {
  const Workplace place;
  for (const std::string name : {"gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-v", "dualpipe",
                                 "dualpipe-v", "pipedream", "paci", "2bw"}) {
    const std::string flags = " --schedule " + name + " --ranks 4 --microbatches 8";
    ASSERT_EQ(
        place.Pipelag("schedule --export x.csv --export-form communication" + flags).exit_code, 0);
    EXPECT_THAT(place.Read("x.csv"), HasSubstr("1RECV_F3"));
    const std::string times = " --p2p-latency 70us --format json";
    json original = Json(place.Pipelag("simulate" + flags + times));
    json imported = Json(place.Pipelag("simulate --schedule x.csv" + times));
    original["schedule"] = imported["schedule"];
    original.erase("latency_hidden_by");
    EXPECT_EQ(original, imported) << name;
    ASSERT_EQ(place
                  .Pipelag("schedule --schedule x.csv --export again.csv --export-form "
                           "communication")
                  .exit_code,
              0);
    EXPECT_EQ(place.Read("x.csv"), place.Read("again.csv")) << name;
    ASSERT_EQ(place.Pipelag("schedule --schedule x.csv --export bare.csv").exit_code, 0);
    ASSERT_EQ(
        place.Pipelag("schedule --export compute.csv --export-form compute" + flags).exit_code, 0);
    EXPECT_EQ(place.Read("bare.csv"), place.Read("compute.csv")) << name;
    for (const std::string& file : place.Files()) place.Remove(file);
  }
}

/// What is made for given times is written as it was simulated on them.
TEST(Schedule, ExportsWhatWasMadeForTheTimesGiven) {
  const Workplace place;
  const std::string times =
      " --forward 4ms,1ms,1ms,1ms,2ms,1ms --backward-input 1ms,1ms,6ms,1ms,1ms,1ms "
      "--backward-weight 1ms,3ms,1ms,1ms,1ms,2ms";
  const std::string made = " --schedule zb-auto --ranks 3 --microbatches 7";
  ASSERT_EQ(place.Pipelag("schedule --export x.csv" + made + times).exit_code, 0);
  json original = Json(place.Pipelag("simulate --format json" + made + times));
  json imported = Json(place.Pipelag("simulate --format json --schedule x.csv" + times));
  original["schedule"] = imported["schedule"];
  EXPECT_EQ(original, imported);
  ASSERT_EQ(place.Pipelag("schedule --export unit.csv" + made).exit_code, 0);
  EXPECT_NE(place.Read("x.csv"), place.Read("unit.csv"));
  const Outcome useless =
      place.Pipelag("schedule --schedule 1f1b --ranks 3 --microbatches 7 --forward 1ms");
  EXPECT_EQ(useless.exit_code, 2);
  EXPECT_THAT(useless.err, HasSubstr("--forward"));
}

TEST(Schedule, TheOrderOfPyTorchsForm) {
  const Workplace place;
  ASSERT_EQ(place
                .Pipelag("schedule --schedule 1f1b --ranks 2 --microbatches 2 --export x.csv "
                         "--export-form communication")
                .exit_code,
            0);
  EXPECT_EQ(place.Read("x.csv"),
            "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
            "1RECV_F0,1RECV_F1,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n");
}

TEST(Schedule, ClosedFormsBesideWhatTheOrderGives) {
  const Workplace place;
  const std::string sizes = " --ranks 4 --microbatches 8";
  const json facts =
      Json(place.Pipelag("schedule --format json --schedule zb-h2" + sizes)).at("facts");
  std::map<std::string, json> values;
  for (const json& fact : facts) {
    EXPECT_EQ(fact.at("agrees"), true) << fact;
    values[fact.at("quantity")] = fact.at("value");
  }
  EXPECT_EQ(values.at("idle of makespan"), json({1, 9}));
  EXPECT_EQ(values.at("idle of span"), 0);
  EXPECT_EQ(values.at("in flight"), 7);
  const std::string text = place.Pipelag("schedule --schedule interleaved-1f1b" + sizes).out;
  EXPECT_THAT(text, HasSubstr("(p − 1) / (v·m + p − 1)"));
  EXPECT_THAT(text, HasSubstr("in flight per rank: 11,9,7,5, in shares of 1/4 of the network "
                              "5.5,4.5,3.5,2.5\n"));
  EXPECT_THAT(place.Pipelag("schedule --schedule zb-auto" + sizes).out,
              HasSubstr("no closed form is known for these sizes: idle of makespan, in flight\n"));
  place.Write("x.csv", "0F0,0B0\n1F0,1B0\n");
  EXPECT_THAT(place.Pipelag("schedule --schedule x.csv").out,
              HasSubstr("closed form: none is known of an order that is a file's own\n"));
}

struct Refusal {
  std::string csv;
  std::string sentence;
  std::string cell;  ///< marked in the grid
};

TEST(Schedule, AUsersOwnFileIsRefusedAtTheExactPlace) {
  const Workplace place;
  const Refusal refusals[] = {
      {"0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
       "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n",
       "x.csv: deadlock under rendezvous sends, though not under eager ones: 0SEND_F1 (rank 0) → "
       "1RECV_F1 (rank 1) → 1SEND_B0 → 0RECV_B0 (rank 0) → 0SEND_F1, each waiting for the next",
       ">0SEND_F1<"},
      {"0F0,0B0,0F1,0B1\n1F1,1F0,1B0,1B1\n",
       "x.csv: deadlock on any links: 0B0 (rank 0) → 1B0 (rank 1) → 1F1 → 0F1 (rank 0) → 0B0",
       ">0B0<"},
      {"0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1B0,1SEND_B0\n",
       "x.csv: 0SEND_F0 sends what is never received: rank 1 has no 1RECV_F0", ">0SEND_F0<"},
      {"0F0,0RECV_B0,0B0\n1RECV_F0,0SEND_F0,1F0,1B0,1SEND_B0\n",
       "x.csv: 0SEND_F0 stands on rank 1, but its stage is placed on rank 0", ">0SEND_F0<"},
  };
  for (const Refusal& refusal : refusals) {
    place.Write("x.csv", refusal.csv);
    for (const char* command : {"schedule", "simulate", "run"}) {
      const Outcome outcome = place.Pipelag(std::string(command) + " --schedule x.csv");
      EXPECT_EQ(outcome.exit_code, 2) << command << refusal.csv;
      EXPECT_THAT(outcome.err, HasSubstr(refusal.sentence)) << command;
      EXPECT_THAT(outcome.err, HasSubstr(refusal.cell)) << command;
    }
  }
}

TEST(Schedule, EagerSendsMayCross) {
  const Workplace place;
  place.Write("x.csv",
              "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
              "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n");
  EXPECT_EQ(place.Pipelag("simulate --schedule x.csv --sends rendezvous").exit_code, 2);
  const json eager = Json(place.Pipelag("simulate --schedule x.csv --sends eager --format json"));
  EXPECT_EQ(eager.at("makespan_ns"), 9000000);
  place.Write("bare.csv", "0F0,0B0\n1F0,1B0\n");
  for (const auto& [command, why] :
       {std::pair("simulate --schedule bare.csv --sends eager", "bare.csv has no sends"),
        std::pair("simulate --schedule 1f1b --ranks 2 --microbatches 2 --sends eager",
                  "no file is named"),
        std::pair("simulate --schedule x.csv --sends meager", "'meager'"),
        std::pair("schedule --schedule x.csv --sends eager --export-form compute", "--export")}) {
    const Outcome outcome = place.Pipelag(command);
    EXPECT_EQ(outcome.exit_code, 2) << command;
    EXPECT_THAT(outcome.err, HasSubstr(why)) << command;
  }
}

}  // namespace
}  // namespace pipelag
