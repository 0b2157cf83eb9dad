// Schedules as text: CSV both ways, in our form and in PyTorch's, and what is wrong with a cell.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "models/file.h"
#include "models/schedule/generators.h"
#include "models/schedule/program.h"
#include "models/schedule/text.h"
#include "tests/scratch.h"

namespace pipelag {
namespace {

using testing::HasSubstr;

/// Two ranks with one stage each per direction, as DualPipe places them.
Schedule TwoStreams() {
  const auto act = [](ActionKind kind, int stage, int microbatch, bool overlaps = false) {
    return Action{microbatch, static_cast<uint16_t>(stage), kind, overlaps};
  };
  using enum ActionKind;
  Schedule s;
  s.name = "two-streams";
  s.ranks = s.stages = s.streams = s.microbatches = 2;
  s.placement = {0, 1, 1, 0};
  s.groups = {{CollectiveGroup::Purpose::kWeights, {0, 2}},
              {CollectiveGroup::Purpose::kWeights, {1, 3}}};
  s.body = {{act(kForward, 0, 0), act(kForward, 3, 1, true), act(kBackwardInput, 3, 1),
             act(kBackwardWeight, 3, 1), act(kBackward, 0, 0), act(kAllReduce, 0, 0),
             act(kAllReduce, 1, 0), act(kUpdate, 0, 0), act(kUpdate, 3, 0)},
            {act(kForward, 2, 1), act(kForward, 1, 0), act(kBackward, 1, 0), act(kBackward, 2, 1),
             act(kAllReduce, 0, 0), act(kAllReduce, 1, 0), act(kUpdate, 1, 0), act(kUpdate, 2, 0)}};
  return s;
}

void ExpectSame(const Schedule& a, const Schedule& b) {
  EXPECT_EQ(a.ranks, b.ranks);
  EXPECT_EQ(a.stages, b.stages);
  EXPECT_EQ(a.streams, b.streams);
  EXPECT_EQ(a.microbatches, b.microbatches);
  EXPECT_EQ(a.policy, b.policy);
  EXPECT_EQ(a.placement, b.placement);
  ASSERT_EQ(a.body.size(), b.body.size());
  for (size_t rank = 0; rank < a.body.size(); ++rank) EXPECT_EQ(a.body[rank], b.body[rank]);
  ASSERT_EQ(a.groups.size(), b.groups.size());
  for (size_t g = 0; g < a.groups.size(); ++g) {
    EXPECT_EQ(a.groups[g].purpose, b.groups[g].purpose);
    EXPECT_EQ(a.groups[g].stages, b.groups[g].stages);
  }
}

Schedule ReadBack(const Schedule& schedule) {
  const std::string sidecar = CsvIsComplete(schedule) ? "" : ToCsvSidecar(schedule);
  return ParseCsv(ToCsv(schedule, schedule.body), sidecar, "x.csv");
}

void Write(const Schedule& schedule, const std::filesystem::path& file) {
  WriteCsv(schedule, schedule.body, file);
}

std::string ErrorOf(std::string_view csv, std::string_view sidecar = "") {
  try {
    ParseCsv(csv, sidecar, "dir/x.csv");
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Csv, RoundTripsOfEverySchedule) {
  for (const Generator& generator : Generators()) {
    int written = 0;
    for (const auto& [p, m] :
         {std::pair(1, 1), std::pair(1, 4), std::pair(4, 8), std::pair(5, 5), std::pair(2, 8)}) {
      Schedule schedule;
      try {
        schedule = Generate(generator.name, {.ranks = p, .microbatches = m});
      } catch (const Error&) {
        continue;  // not a shape that this schedule has
      }
      ++written;
      SCOPED_TRACE(generator.name);
      ExpectSame(schedule, ReadBack(schedule));
    }
    EXPECT_GE(written, 2) << generator.name;
  }
}

TEST(Csv, RoundTripsWithGroupsAndLateUpdates) {
  for (const char* name : {"1f1b", "2bw"}) {
    const GeneratorOptions options{
        .ranks = 3, .microbatches = 6, .warmup_slope = 2, .reduction = true, .norm = true};
    const Schedule schedule = Generate(name, options);
    EXPECT_FALSE(CsvIsComplete(schedule));
    ExpectSame(schedule, ReadBack(schedule));
    EXPECT_EQ(ReadBack(schedule).name, name);
  }
}

TEST(Csv, RoundTripsStreamsAndOverlaps) {
  const Schedule schedule = TwoStreams();
  EXPECT_TRUE(Validate(schedule).empty());
  EXPECT_THAT(ToCsv(schedule, schedule.body),
              HasSubstr("0F0,(1F1;1I1)OVERLAP_F_B,1W1,0B0,0AR0,1AR0,0U0,1U0\n"));
  ExpectSame(schedule, ReadBack(schedule));
}

TEST(Csv, ARankMayHoldASliceForBothStreams) {
  Schedule s = TwoStreams();
  s.ranks = 1;
  s.stages = 1;
  s.groups.clear();
  s.placement = {0, 0};
  using enum ActionKind;
  s.body = {{{0, 0, kForward},
             {1, 1, kForward},
             {0, 0, kBackward},
             {1, 1, kBackward},
             {0, 0, kUpdate},
             {0, 1, kUpdate}}};
  EXPECT_TRUE(Validate(s).empty());
  ExpectSame(s, ReadBack(s));
}

TEST(Csv, FilesWithASidecarWhereTheCsvIsNotEnough) {
  const auto folder = Scratch("csv_test");
  std::filesystem::remove_all(folder);
  std::filesystem::create_directory(folder);
  const GeneratorOptions options{.ranks = 2, .microbatches = 2};
  Write(Generate("gpipe", options), folder / "gpipe.csv");
  EXPECT_FALSE(std::filesystem::exists(folder / "gpipe.json"));
  EXPECT_EQ(ReadFile(folder / "gpipe.csv"), "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n");
  Write(Generate("2bw", options), folder / "2bw.csv");
  EXPECT_TRUE(std::filesystem::exists(folder / "2bw.json"));
  ExpectSame(Generate("2bw", options), ReadCsv(folder / "2bw.csv"));
  EXPECT_EQ(ReadCsv(folder / "gpipe.csv").name, "gpipe");
  EXPECT_THROW(Write(Generate("2bw", options), folder / "x.json"), Error);
  EXPECT_FALSE(std::filesystem::exists(folder / "x.json"));
  // A schedule that needs no text beside it must not meet an old one.
  Write(Generate("gpipe", options), folder / "2bw.csv");
  ExpectSame(Generate("gpipe", options), ReadCsv(folder / "2bw.csv"));
  std::filesystem::remove_all(folder);
}

TEST(Csv, AsPyTorchWritesIt) {
  const Schedule schedule = ParseCsv(
      "\"0F0\", 0F1 ,,2F0,\"\",0I0,0W0,\r\n"
      "\n"
      "1F0,,1F1,\"(1F2;1B0)OVERLAP_F_B\"\r\n",
      "", "x.csv");
  EXPECT_EQ(schedule.ranks, 2);
  EXPECT_EQ(schedule.stages, 3);
  EXPECT_EQ(schedule.microbatches, 3);
  EXPECT_EQ(schedule.placement, (std::vector<int>{0, 1, 0}));
  using enum ActionKind;
  const std::vector<Action> first = {{0, 0, kForward, false},        {1, 0, kForward, false},
                                     {0, 2, kForward, false},        {0, 0, kBackwardInput, false},
                                     {0, 0, kBackwardWeight, false}, {0, 0, kUpdate, false},
                                     {0, 2, kUpdate, false}};
  EXPECT_EQ(schedule.body[0], first);
  const std::vector<Action> second = {{0, 1, kForward, false},
                                      {1, 1, kForward, false},
                                      {2, 1, kForward, true},
                                      {0, 1, kBackward, false},
                                      {0, 1, kUpdate, false}};
  EXPECT_EQ(schedule.body[1], second);
}

TEST(Csv, MalformedCellsNameLineAndCell) {
  EXPECT_THAT(ErrorOf(""), HasSubstr("dir/x.csv: holds no schedule"));
  EXPECT_THAT(ErrorOf("\n \n"), HasSubstr("holds no schedule"));
  EXPECT_THAT(ErrorOf(",,\n"), HasSubstr("no action of a micro-batch"));
  EXPECT_THAT(ErrorOf("0U0\n"), HasSubstr("no action of a micro-batch"));
  EXPECT_THAT(ErrorOf("0F0,0Q0\n"), HasSubstr("dir/x.csv: line 1, cell 2: '0Q0'"));
  EXPECT_THAT(ErrorOf("0F0\n\n0B0,,F0\n"), HasSubstr("line 3, cell 3: 'F0'"));
  for (const char* cell : {"0",
                           "F",
                           "0F",
                           "F0",
                           "0F0x",
                           "0F--1",
                           "-1F0",
                           "0F1-",
                           "0f0",
                           "0F99999999999",
                           "99999999999F0",
                           "0RECV_F",
                           "SEND_B0",
                           "0SEND0",
                           "UNSHARD",
                           "0UNSHARD0",
                           "(0F0;1B0)",
                           "(0F0)OVERLAP_F_B",
                           "(0F0;0B0)OVERLAP",
                           "(0F0;0B0",
                           "\"0F0",
                           "0F0 0F1",
                           "0F0;0B0",
                           "((0F0;0B0)OVERLAP_F_B",
                           "0F0\xff",
                           "0F2147483648"}) {
    EXPECT_THAT(ErrorOf(std::string("0F0,") + cell + "\n"),
                HasSubstr("dir/x.csv: line 1, cell 2: "))
        << cell;
  }
  EXPECT_THAT(ErrorOf("0F0,0B0\n2F0,2B0\n"), HasSubstr("stage 1 has no F on any rank"));
  EXPECT_THAT(ErrorOf("70000F0\n"), HasSubstr("dir/x.csv"));
  EXPECT_THAT(ErrorOf("2147483647F0\n"), HasSubstr("dir/x.csv"));
  EXPECT_THAT(ErrorOf("0F2147483647\n"), HasSubstr("dir/x.csv"));
  EXPECT_THAT(ErrorOf("0F0,70000U0\n"), HasSubstr("dir/x.csv"));
}

TEST(Csv, AWrongSidecarNamesItsFileAndKey) {
  const std::string csv = "0F0,0B0,0U0\n";
  const auto error = [&](const char* sidecar) { return ErrorOf(csv, sidecar); };
  EXPECT_THAT(error("["), HasSubstr("dir/x.json: is not a JSON object"));
  EXPECT_THAT(error("[]"), HasSubstr("dir/x.json: is not a JSON object"));
  EXPECT_THAT(error("{}"), HasSubstr("dir/x.json: /policy is missing"));
  EXPECT_THAT(error(R"({"policy": 3})"), HasSubstr("/policy has the wrong type"));
  EXPECT_THAT(error(R"({"policy": "flsh"})"), HasSubstr("'flsh'"));
  const auto with = [&](const char* rest) {
    return ErrorOf(csv, std::string(R"({"name": "x", "policy": "latest", )") + rest + "}");
  };
  EXPECT_THAT(with(R"("streams": 1, "microbatches": 0, "groups": [])"), HasSubstr("/microbatches"));
  EXPECT_THAT(with(R"("streams": 2, "microbatches": 3, "groups": [])"), HasSubstr("/streams"));
  EXPECT_THAT(with(R"("streams": 1, "microbatches": 1, "groups": {})"), HasSubstr("/groups"));
  EXPECT_THAT(with(R"("streams": 1, "microbatches": 1, "groups": [1])"), HasSubstr("/groups/0"));
  EXPECT_THAT(with(R"("streams": 1, "microbatches": 1, "groups": [{"purpose": "fun"}])"),
              HasSubstr("/groups/0"));
  EXPECT_THAT(with(R"("stream": 1, "streams": 1, "microbatches": 1, "groups": [])"),
              HasSubstr("dir/x.json: /stream: unknown key"));
  EXPECT_THAT(with(R"("streams": 1, "microbatches": 1, "groups": [{"purpose": "norm", "stages": [0],
                       "ranks": [0]}])"),
              HasSubstr("/groups/0/ranks: unknown key"));
  EXPECT_THAT(with(R"("streams": 1.5, "microbatches": 1, "groups": [])"), HasSubstr("/streams"));
  EXPECT_THAT(with(R"("streams": 1, "microbatches": 99999999999, "groups": [])"),
              HasSubstr("/microbatches"));
}

TEST(Grid, MarksFindingsAndShowsTheirSurroundings) {
  const Schedule schedule = Generate("1f1b", {.ranks = 2, .microbatches = 40});
  const std::string whole = FormatGrid(schedule, {}, 1000);
  EXPECT_EQ(std::count(whole.begin(), whole.end(), '\n'), 2);
  EXPECT_THAT(whole, HasSubstr("1B39"));
  const std::string part = FormatGrid(schedule, {{"", 1, 60}}, 10);
  EXPECT_THAT(part, HasSubstr(">1F30<"));
  EXPECT_THAT(part, testing::Not(HasSubstr("1F0 ")));
  EXPECT_THAT(part, HasSubstr("…"));
  EXPECT_THAT(FormatGrid(TwoStreams()), HasSubstr("1F1+1I1"));
}

}  // namespace
}  // namespace pipelag
