// Whatever is wrong with the input: exit code 2, one sentence that names the place, and nothing
// left half written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/tools/launched.h"

namespace pipelag {
namespace {

using testing::HasSubstr;

struct BadInput {
  std::string command;
  std::vector<std::string> named;  ///< what the sentence must mention
};

void ExpectOneSentence(const Outcome& outcome, const BadInput& bad) {
  EXPECT_EQ(outcome.exit_code, 2) << bad.command << '\n' << outcome.err;
  EXPECT_EQ(outcome.out, "") << bad.command;
  EXPECT_EQ(Lines(outcome.err), 1u) << bad.command << '\n' << outcome.err;
  EXPECT_EQ(outcome.err.rfind("pipelag: ", 0), 0u) << outcome.err;
  for (const std::string& word : bad.named)
    EXPECT_THAT(outcome.err, HasSubstr(word)) << bad.command;
}

constexpr char kGood[] = "simulate --schedule 1f1b --ranks 4 --microbatches 8 ";

TEST(BadInput, Flags) {
  const Workplace place;
  const BadInput cases[] = {
      {"", {"subcommand"}},
      {"simulat", {"'simulat'", "'simulate'"}},
      {"--versio", {"'--versio'", "'--version'"}},
      {"simulate", {"--schedule is missing"}},
      {"simulate --schedule 1f1b --microbatches 8", {"--ranks is missing"}},
      {"simulate --schedule 1f1b --ranks 4", {"--microbatches is missing"}},
      {"simulate --schedule 1f2b --ranks 4 --microbatches 8", {"--schedule", "'1f2b'", "'1f1b'"}},
      {"simulate --schedule 1f1b, --ranks 4 --microbatches 8", {"--schedule", "empty"}},
      {"simulate --sched 1f1b", {"--sched ", "--schedule"}},
      {"simulate --schedule 1f1b --ranks 0 --microbatches 8", {"--ranks", "'0'"}},
      {"simulate --schedule 1f1b --ranks -3 --microbatches 8", {"--ranks", "'-3'"}},
      {"simulate --schedule 1f1b --ranks 4x --microbatches 8", {"--ranks", "'4x'"}},
      {"simulate --schedule 1f1b --ranks 1e3 --microbatches 8", {"--ranks", "'1e3'"}},
      {"simulate --schedule 1f1b --ranks 4 --microbatches 0", {"--microbatches", "'0'"}},
      {"simulate --schedule 1f1b --ranks 70000 --microbatches 1", {"--ranks 70000"}},
      {"simulate --schedule 1f1b --ranks 60000 --microbatches 2000000000", {"--microbatches"}},
      {"simulate --schedule pipedream --ranks 4 --microbatches 8 --clip-norm", {"--clip-norm"}},
      {"simulate --schedule 2bw --ranks 4 --microbatches 8 --flush-barrier global",
       {"--flush-barrier"}},
      {std::string(kGood) + "--ranks 4", {"--ranks is given twice"}},
      {std::string(kGood) + "--forward 1 --backward 2ms", {"--forward", "'1'", "unit"}},
      {std::string(kGood) + "--forward 1", {"--forward", "'1'", "unit"}},
      {std::string(kGood) + "--forward 1msec --backward 2ms", {"--forward", "'1msec'", "'msec'"}},
      {std::string(kGood) + "--forward=-1ms --backward 2ms", {"--forward", "'-1ms'", "negative"}},
      {std::string(kGood) + "--forward 1ms", {"--backward is missing"}},
      {std::string(kGood) + "--stalls 1:9000000000s", {"292 years"}},
      {std::string(kGood) + "--stalls 1:900000000s --steps 100", {"292 years"}},
      {std::string(kGood) + "--forward 10000000s --backward 10000000s --rank-factors 100",
       {"292 years"}},
      {"schedule --schedule 1f1b --ranks 2 --microbatches 2 --export x", {"--export", ".csv"}},
      {std::string(kGood) + "--backward 1ms", {"--forward is missing"}},
      {std::string(kGood) + "--forward 1ms --backward-input 1ms", {"--backward-weight is missing"}},
      {std::string(kGood) + "--forward 1ms,2ms --backward 1ms", {"--forward", "2 entries"}},
      {std::string(kGood) + "--forward 1ms,,1ms --backward 1ms", {"--forward", "empty"}},
      {std::string(kGood) + "--forward 9000000000s --backward 2ms", {"292 years"}},
      {std::string(kGood) + "--forward", {"--forward"}},
      {std::string(kGood) + "--p2p-bandwidth 25GB", {"--p2p-bandwidth", "'25GB'"}},
      {std::string(kGood) + "--p2p-latency 8", {"--p2p-latency", "'8'", "unit"}},
      {std::string(kGood) + "--activation-bytes 16", {"--activation-bytes", "'16'", "unit"}},
      {std::string(kGood) + "--steps 0", {"--steps", "'0'"}},
      {std::string(kGood) + "--steps 3000000000", {"--steps", "'3000000000'"}},
      {std::string(kGood) + "--receive-slots 0", {"--receive-slots", "'0'"}},
      {std::string(kGood) + "--warmup-slope x", {"--warmup-slope", "'x'"}},
      {std::string(kGood) + "--warmup-slope 2000000000", {"--warmup-slope"}},
      {std::string(kGood) + "--flush-barrier globl", {"--flush-barrier", "'globl'", "'global'"}},
      {std::string(kGood) + "--update-placement soon", {"--update-placement", "'soon'"}},
      {std::string(kGood) + "--update-placement late", {"--update-placement", "1f1b"}},
      {std::string(kGood) + "--clip-norm 0", {"--clip-norm", "'0'"}},
      {std::string(kGood) + "--format jsn", {"--format", "'jsn'", "'json'"}},
      {std::string(kGood) + "--help=1", {"--help"}},
      {"list schedules", {"'schedules'"}},
      {"calibrate -o costs.json", {"TRACE"}},
      {"calibrate missing.json", {"--output is missing"}},
      {"compare one.json", {"MEASURED SIMULATED"}},
      {"analyze", {"TRACE"}},
      {"schedule --schedule gpipe,1f1b --ranks 2 --microbatches 2 --export x.csv", {"--export"}},
  };
  for (const BadInput& bad : cases) ExpectOneSentence(place.Pipelag(bad.command), bad);
  EXPECT_EQ(place.Files(), std::vector<std::string>{});
}

TEST(BadInput, Files) {
  const Workplace place;
  place.Write("empty.json", "");
  place.Write("cut.json", R"({"schedule": "1f1b", "ranks": )");
  place.Write("list.json", "[1, 2]");
  place.Write("key.json", R"({"schedule": "1f1b", "rank": 4})");
  place.Write("unit.json", R"({"schedule": "1f1b", "ranks": 2, "microbatches": 2,
      "forward": ["1ms", "2"], "backward": "1ms"})");
  place.Write("type.json", R"({"schedule": "1f1b", "ranks": null})");
  place.Write("half.json", R"({"schedule": "1f1b", "ranks": 2, "microbatches": 2.5})");
  place.Write("zero.json", R"({"schedule": "1f1b", "ranks": 0, "microbatches": 2})");
  place.Write("costs.json", R"({"forward_ns": [1, 2], "backward_ns": [3, 4]})");
  place.Write("cell.csv", "0F0,0F1,0B0,0B1\n1F0,1X0,1F1,1B1\n");
  place.Write("bad.csv", "");
  const std::string csv = "simulate --schedule ";
  const BadInput cases[] = {
      {"simulate missing.json", {"missing.json", "No such file"}},
      {"simulate empty.json", {"empty.json", "empty"}},
      {"simulate cut.json", {"cut.json", "byte"}},
      {"simulate list.json", {"list.json", "/"}},
      {"simulate key.json", {"key.json", "/rank", "'ranks'"}},
      {"simulate unit.json", {"unit.json", "/forward/1", "'2'", "unit"}},
      {"simulate type.json", {"type.json", "/ranks", "null"}},
      {"simulate half.json", {"half.json", "/microbatches", "'2.5'"}},
      {"simulate zero.json", {"zero.json", "/ranks", "'0'"}},
      {"simulate .", {".", "folder"}},
      {"simulate cell.csv list.json", {"list.json"}},
      {csv + "cell.csv", {"cell.csv", "line 2", "cell 2", "'1X0'"}},
      {csv + "bad.csv", {"bad.csv", "empty"}},
      {csv + "missing.csv", {"missing.csv"}},
      {std::string(kGood) + "--costs costs.json", {"costs.json", "/forward_ns"}},
      {std::string(kGood) + "--costs empty.json", {"empty.json"}},
      {std::string(kGood) + "--costs missing.json", {"missing.json"}},
      {std::string(kGood) + "--trace nowhere/trace.json", {"nowhere/trace.json"}},
      {std::string(kGood) + "--trace .", {".", "folder"}},
      {"schedule --schedule gpipe --ranks 2 --microbatches 2 --export nowhere/x.csv",
       {"nowhere/x.csv"}},
      {"analyze empty.json", {"empty.json", "empty"}},
      {"analyze cut.json", {"cut.json"}},
      {"analyze list.json", {"list.json"}},
      {"calibrate cut.json -o costs-new.json", {"cut.json"}},
      {"calibrate missing.json -o costs-new.json", {"missing.json"}},
      {"compare empty.json cut.json", {"empty.json"}},
      {"compare cut.json cut.json --tolerance -1", {"--tolerance", "'-1'"}},
  };
  const std::vector<std::string> before = place.Files();
  for (const BadInput& bad : cases) ExpectOneSentence(place.Pipelag(bad.command), bad);
  EXPECT_EQ(place.Files(), before);
}

TEST(BadInput, AnIllFormedScheduleShowsItsGrid) {
  const Workplace place;
  place.Write("order.csv", "0B0,0F0\n1F0,1B0\n");
  for (const char* command : {"simulate", "schedule"}) {
    const Outcome outcome =
        place.Pipelag(std::string(command) + " --schedule order.csv --format json");
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(outcome.err, HasSubstr("pipelag: order.csv: 0B0 stands before its own forward\n"));
    EXPECT_THAT(outcome.err, HasSubstr("rank 0   >0B0< 0F0 0U0\n"));
  }
  const auto findings =
      nlohmann::json::parse(place.Pipelag("schedule --schedule order.csv --format json").out);
  EXPECT_EQ(findings.at("findings").size(), 1u);
  EXPECT_EQ(findings.at("findings")[0].at("rank"), 0);
}

TEST(BadInput, TooFewMicrobatchesForTwoVersionsSaysWhy) {
  const Workplace place;
  const Outcome outcome = place.Pipelag("simulate --schedule 2bw --ranks 4 --microbatches 2");
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("version 1 of stage 0 does not exist yet"));
  EXPECT_THAT(outcome.err, HasSubstr("too few"));
  EXPECT_THAT(outcome.err, HasSubstr(">0F4<"));
}

TEST(BadInput, ATruncatedTraceIsRefusedAtAnyLength) {
  const Workplace place;
  ASSERT_EQ(place.Pipelag(std::string(kGood) + "--trace trace.json").exit_code, 0);
  const std::string whole = place.Read("trace.json");
  for (const size_t length :
       {size_t{1}, size_t{20}, whole.size() / 3, whole.size() / 2, whole.size() - 3}) {
    place.Write("cut.json", whole.substr(0, length));
    ExpectOneSentence(place.Pipelag("analyze cut.json"), {"analyze cut.json", {"cut.json"}});
  }
}

TEST(BadInput, AFailureLeavesOldFilesAlone) {
  const Workplace place;
  for (const char* name : {"trace.json", "x.csv", "costs.json"}) place.Write(name, "precious");
  place.Write("one.csv", "0B0,0F0\n");
  EXPECT_EQ(place.Pipelag("simulate --schedule one.csv --trace trace.json").exit_code, 2);
  EXPECT_EQ(place.Pipelag(std::string(kGood) + "--steps x --trace trace.json").exit_code, 2);
  EXPECT_EQ(place.Pipelag("schedule --schedule one.csv --export x.csv").exit_code, 2);
  EXPECT_EQ(place.Pipelag("calibrate trace.json -o costs.json").exit_code, 2);
  for (const char* name : {"trace.json", "x.csv", "costs.json"}) {
    EXPECT_EQ(place.Read(name), "precious") << name;
  }
  EXPECT_EQ(place.Files(),
            (std::vector<std::string>{"costs.json", "one.csv", "trace.json", "x.csv"}));
}

TEST(BadInput, NoResultIsWrittenOverAnInput) {
  const Workplace place;
  const std::string small = " --ranks 2 --microbatches 2 ";
  ASSERT_EQ(place.Pipelag("schedule --schedule 2bw" + small + "--export own.csv").exit_code, 0);
  ASSERT_EQ(place.Pipelag("simulate --schedule 1f1b" + small + "--trace t.json").exit_code, 0);
  place.Write("costs.json", R"({"forward_ns": [1, 2], "backward_ns": [3, 4]})");
  place.Write("job.json", R"({"schedule": "own.csv", "costs": "costs.json"})");
  const BadInput cases[] = {
      {"simulate job.json --trace job.json", {"--trace", "job.json", "an input"}},
      {"simulate job.json --trace ./job.json", {"--trace", "job.json", "an input"}},
      {"simulate job.json --trace costs.json", {"--trace", "job.json: /costs"}},
      {"simulate job.json --trace own.json", {"--trace", "own.json", "job.json: /schedule"}},
      {"simulate --schedule own.csv --trace own.csv", {"--trace", "own.csv", "--schedule"}},
      {"calibrate t.json -o t.json", {"--output", "t.json", "an input"}},
  };
  std::vector<std::string> before;
  for (const std::string& file : place.Files()) before.push_back(place.Read(file));
  for (const BadInput& bad : cases) ExpectOneSentence(place.Pipelag(bad.command), bad);
  std::vector<std::string> after;
  for (const std::string& file : place.Files()) after.push_back(place.Read(file));
  EXPECT_EQ(after, before);
}

TEST(BadInput, AFullDiskIsNoSuccess) {
  const Workplace place;
  const Outcome outcome = place.Pipelag(std::string(kGood) + "--trace /dev/full");
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("/dev/full"));
}

TEST(BadInput, FoundByFreshEyes) {
  const Workplace place;
  place.Write("large.json", "{\"forward_ns\":[1e400],\"backward_ns\":[1]}");
  place.Write("job.json", "{\"schedule\":\"1f1b\",\"ranks\":1e400,\"microbatches\":3}");
  const std::string simulate = "simulate --schedule gpipe --ranks 1 --microbatches 1 ";
  ASSERT_EQ(place.Pipelag(simulate + "--trace t.json").exit_code, 0);
  // The same action once more: no rank computes two things at once.
  std::string twice = place.Read("t.json");
  const size_t kind = twice.find("\"ph\":\"X\"");
  ASSERT_NE(kind, std::string::npos);
  const size_t event = twice.rfind('{', kind);
  const size_t end = twice.find("}}", event) + 2;
  twice.insert(event, twice.substr(event, end - event) + ",");
  place.Write("twice.json", twice);
  const std::vector<std::pair<std::string, std::string>> cases = {
      {simulate + "--costs large.json", "large.json: a number in it is too large"},
      {"simulate job.json", "job.json: a number in it is too large"},
      {simulate + "--device-memory 1GiB", "--weight-bytes"},
      {"simulate --schedule gpipe,gpipe --ranks 1 --microbatches 1", "named twice"},
      {"calibrate t.json -o t.json", "--output: t.json is needed for an input already"},
      {"analyze twice.json", "at the same time"},
      {"run --schedule gpipe --ranks 1 --microbatches 1 --trace x --loss x", "x is needed for --"},
      {"run --schedule gpipe --ranks 1 --microbatches 1 --data /dev/zero", "is a device"},
  };
  for (const auto& [command, expected] : cases) {
    const Outcome outcome = place.Pipelag(command);
    EXPECT_EQ(outcome.exit_code, 2) << command;
    EXPECT_EQ(Lines(outcome.err), 1u) << command;
    EXPECT_NE(outcome.err.find(expected), std::string::npos) << command << ": " << outcome.err;
  }
}

/// While it is trained on, by threads and by processes.
TEST(BadInput, DataThatIsCutShortMeanwhileEndsTheRunWithItsName) {
  constexpr const char* kRun =
      "run --schedule 1f1b --ranks 2 --microbatches 2 --layers 2 --hidden 16 --heads 2 "
      "--sequence 8 --steps 20000 --data text.txt --log log --checkpoint kept --checkpoint-every "
      "10";
  for (const char* backend : {" --backend threads", " --backend mpi"}) {
    SCOPED_TRACE(backend);
    const Workplace place;
    place.Write("text.txt", std::string(20'000, 'a'));
    std::vector<Started> started;
    if (std::string_view(backend).ends_with("mpi")) {
      started = StartAll(place, 2, std::string(kRun) + backend);
    } else {
      started.push_back(place.Start(std::string(kRun) + backend, {}));
    }
    WaitForLines(place, "log", 3);
    std::filesystem::resize_file(place.PathOf("text.txt"), 10);
    std::string said;
    for (Started& one : started) {
      const Outcome outcome = one.FinishOrKill();
      EXPECT_EQ(outcome.exit_code, 2);
      EXPECT_LE(Lines(outcome.err), 1u) << outcome.err;
      EXPECT_EQ(outcome.out, "");
      said += outcome.err;
    }
    EXPECT_THAT(said, testing::ContainsRegex(
                          "pipelag: rank [01] at [01][FB][0-9]+: text.txt: has been cut short: it "
                          "had 20000 bytes when it was opened, and byte [0-9]+ is not there any "
                          "more\n"));
    for (const std::string& file : place.AllFiles()) EXPECT_FALSE(file.ends_with(".tmp")) << file;
  }
}

TEST(BadInput, ADivergedRunKeepsWhatItMeasured) {
  const Workplace place;
  const Outcome outcome = place.Pipelag(
      "run --layers 2 --hidden 16 --heads 2 --sequence 8 --microbatch-size 2 --steps 4 --schedule "
      "1f1b --ranks 2 --microbatches 3 --learning-rate 1e6 --optimizer sgd --predict-from 1f1b "
      "--traces d --loss l.csv --validation-microbatches 1");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("1f1b diverged at step"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.out.find("48 tokens a step"), std::string::npos) << outcome.out;
  EXPECT_EQ(place.Pipelag("analyze d/1f1b.measured.json").exit_code, 0);
  EXPECT_NE(place.Read("l.csv").find(",144,diverged"), std::string::npos) << place.Read("l.csv");
}

}  // namespace
}  // namespace pipelag
