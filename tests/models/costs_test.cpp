// Costs and cost files; names of kinds.
#include "models/costs.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "models/error.h"
#include "models/file.h"
#include "tests/scratch.h"

namespace pipelag {
namespace {

Costs Example() {
  Costs costs;
  costs.forward = {Nanoseconds{1}, Nanoseconds{9'007'199'254'740'993}};
  costs.backward = {Nanoseconds{3}, Nanoseconds{4}};
  costs.update = {Nanoseconds{0}, Nanoseconds{5}};
  costs.activation_bytes = 65'536;
  costs.p2p_bandwidth = Bandwidth{25'000'000'000};
  costs.p2p_latency = Nanoseconds{8'000};
  costs.source = "measured: \"quoted\"\n";
  return costs;
}

TEST(ActionKind, NamesGoBothWays) {
  for (int k = 0; k <= static_cast<int>(ActionKind::kReceiveBackward); ++k) {
    const auto kind = static_cast<ActionKind>(k);
    EXPECT_EQ(KindFromName(KindName(kind)), kind);
  }
  EXPECT_EQ(KindName(ActionKind::kSendForward), "SEND_F");
  EXPECT_EQ(KindFromName("f"), std::nullopt);
  EXPECT_EQ(KindFromName(""), std::nullopt);
}

TEST(Costs, FilesGoBothWays) {
  Costs costs = Example();
  WriteCosts(costs, Scratch("costs.json"));
  EXPECT_EQ(ReadCosts(Scratch("costs.json")), costs);
  costs.backward_input = {Nanoseconds{1}, Nanoseconds{2}};
  costs.backward_weight = {Nanoseconds{2}, Nanoseconds{2}};
  WriteCosts(costs, Scratch("costs.json"));
  EXPECT_EQ(ReadCosts(Scratch("costs.json")), costs);
  costs.backward.clear();
  WriteCosts(costs, Scratch("costs.json"));
  EXPECT_EQ(ReadCosts(Scratch("costs.json")), costs);
}

TEST(Costs, WhatAFileLeavesOutIsZero) {
  WriteFile(Scratch("costs.json"), R"({"forward_ns":[1,2],"backward_ns":[3,4]})");
  const Costs costs = ReadCosts(Scratch("costs.json"));
  EXPECT_EQ(costs.update, (std::vector<Nanoseconds>{Nanoseconds{0}, Nanoseconds{0}}));
  EXPECT_EQ(costs.p2p_bandwidth, Bandwidth{});
  EXPECT_EQ(costs.stages(), 2);
}

TEST(Costs, MistakesAreReportedWithTheirPlace) {
  const auto complaint = [](const std::string& text) -> std::string {
    WriteFile(Scratch("costs.json"), text);
    try {
      ReadCosts(Scratch("costs.json"));
      return "";
    } catch (const Error& error) {
      return std::string(error.what()).substr(Scratch("costs.json").string().size());
    }
  };
  const auto with = [](const std::string& more) {
    return R"({"forward_ns":[1,2],"backward_ns":[3,4],)" + more + "}";
  };
  EXPECT_EQ(complaint(R"({"forward_ns":[1,2,"x"],"backward_ns":[1,2,3]})"),
            ": /forward_ns/2: expected a whole number of nanoseconds, not \"x\"");
  EXPECT_EQ(complaint(R"({"forward_ns":[1.5],"backward_ns":[1]})"),
            ": /forward_ns/0: expected a whole number of nanoseconds, not 1.5");
  EXPECT_EQ(complaint(R"({"forward_ns":7,"backward_ns":[1]})"),
            ": /forward_ns: expected a list of times, one per stage, not 7");
  EXPECT_EQ(complaint(R"({"forward_ns":[-1],"backward_ns":[1]})"),
            ": /forward_ns/0: must not be negative, but is -1");
  EXPECT_EQ(complaint(R"({"forward_ns":[18446744073709551615],"backward_ns":[1]})"),
            ": /forward_ns/0: 18446744073709551615 is too large a number");
  EXPECT_EQ(complaint(R"({"forward_ns":[[1]],"backward_ns":[1]})"),
            ": /forward_ns/0: expected a whole number of nanoseconds, not a list");
  EXPECT_EQ(complaint(with(R"("update_ns":[1])")),
            ": /update_ns: has 1 entries, but /forward_ns has 2");
  EXPECT_EQ(complaint(with(R"("backward_input_ns":[1,1])")),
            ": /backward_weight_ns: is missing: the two halves of a split backward come together");
  EXPECT_EQ(complaint(with(R"("activation_bytes":"16MiB")")),
            ": /activation_bytes: expected a whole number of bytes, not \"16MiB\"");
  EXPECT_EQ(complaint(with(R"("source":1)")), ": /source: expected a text, not 1");
  EXPECT_EQ(complaint(with(R"("updates_ns":[1,1])")).substr(0, 27), ": /updates_ns: unknown key;");
  EXPECT_EQ(complaint(R"({"forward_ns":[1]})"),
            ": /backward_ns: is missing, and so are /backward_input_ns and /backward_weight_ns");
  EXPECT_EQ(complaint("{}"), ": /forward_ns: expected one time per stage, found none");
  EXPECT_EQ(complaint("[]"), ": expected a JSON object");
  EXPECT_EQ(complaint(""), ": is empty");
  EXPECT_EQ(complaint("{\"forward_ns\":[1"),
            ": not valid JSON as it ends too early, after byte 16");
  EXPECT_EQ(complaint(with(R"("source":"a","source":"b")")),
            ": the key \"source\" stands twice in one object");
  EXPECT_THROW(ReadCosts("/nowhere/costs.json"), Error);
  EXPECT_THROW(WriteCosts(Example(), "/nowhere/costs.json"), Error);
}

TEST(Costs, LookUpByKindAndStage) {
  const Costs costs = Example();
  EXPECT_EQ(costs.Of(ActionKind::kForward, 0).count(), 1);
  EXPECT_EQ(costs.Of(ActionKind::kBackward, 1).count(), 4);
  EXPECT_EQ(costs.Of(ActionKind::kUpdate, 1).count(), 5);
  try {
    costs.Of(ActionKind::kBackwardInput, 1);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "the schedule needs the time of I, but --backward-input is not given");
  }
}

TEST(Costs, OneTimeStandsForAllStages) {
  const std::vector<Nanoseconds> one = {Nanoseconds{5}};
  EXPECT_EQ(PerStage(one, 3, "--forward"), std::vector<Nanoseconds>(3, Nanoseconds{5}));
  EXPECT_EQ(PerStage(one, 1, "--forward"), one);
  const std::vector<Nanoseconds> two = {Nanoseconds{5}, Nanoseconds{6}};
  EXPECT_EQ(PerStage(two, 2, "--forward"), two);
  EXPECT_THROW(PerStage(two, 3, "--forward"), Error);
  EXPECT_THROW(PerStage({}, 3, "--forward"), Error);
}

}  // namespace
}  // namespace pipelag
