// Validate and lowering against ill-formed schedules: every kind of finding once, deadlocks, and
// thousands of damaged schedules, none of which may crash, hang or pass unseen.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "models/random.h"
#include "models/schedule/generators.h"
#include "models/schedule/play.h"
#include "models/schedule/program.h"
#include "models/schedule/slots.h"
#include "models/schedule/text.h"

namespace pipelag {
namespace {

using testing::HasSubstr;
using enum ActionKind;

Schedule Flush() { return Generate("1f1b", {.ranks = 2, .microbatches = 2}); }

Schedule FromCsv(std::string_view csv) { return ParseCsv(csv, "", "x.csv"); }

/// The findings of `schedule`, a line each, with their places.
std::string FindingsOf(const Schedule& schedule) {
  std::string text;
  for (const Finding& finding : Validate(schedule)) {
    text += finding.message + " @" + std::to_string(finding.rank) + ',' +
            std::to_string(finding.position) + '\n';
  }
  return text;
}

TEST(Validate, Sizes) {
  const auto change = [](const std::function<void(Schedule&)>& how) {
    Schedule s = Flush();
    how(s);
    return FindingsOf(s);
  };
  EXPECT_EQ(change([](Schedule&) {}), "");
  EXPECT_THAT(change([](Schedule& s) { s.ranks = 0; }), HasSubstr("at least 1 rank"));
  EXPECT_THAT(change([](Schedule& s) { s.stages = -1; }), HasSubstr("at least 1 stage"));
  EXPECT_THAT(change([](Schedule& s) { s.streams = 0; }), HasSubstr("at least 1 stream"));
  EXPECT_THAT(change([](Schedule& s) { s.microbatches = 0; }), HasSubstr("at least 1 micro-batch"));
  EXPECT_THAT(change([](Schedule& s) { s.streams = 3; }), HasSubstr("evenly"));
  EXPECT_THAT(change([](Schedule& s) { s.stages = 70000; }), HasSubstr("65535"));
  EXPECT_THAT(change([](Schedule& s) { s.placement.pop_back(); }), HasSubstr("placement"));
  EXPECT_THAT(change([](Schedule& s) { s.body.pop_back(); }), HasSubstr("lists 1 ranks"));
  EXPECT_THAT(change([](Schedule& s) { s.placement[1] = 2; }), HasSubstr("placed on rank 2"));
  EXPECT_THAT(change([](Schedule& s) { s.placement[1] = -1; }), HasSubstr("placed on rank -1"));
}

TEST(Validate, Groups) {
  const GeneratorOptions options{.ranks = 2, .microbatches = 2, .norm = true};
  const auto change = [&](const std::function<void(Schedule&)>& how) {
    Schedule s = Generate("1f1b", options);
    how(s);
    return FindingsOf(s);
  };
  EXPECT_EQ(change([](Schedule&) {}), "");
  EXPECT_THAT(change([](Schedule& s) { s.groups[0].stages = {0, 2}; }), HasSubstr("names stage 2"));
  EXPECT_THAT(change([](Schedule& s) { s.groups[0].stages.clear(); }), HasSubstr("no stages"));
  EXPECT_THAT(change([](Schedule& s) { s.groups[0].stages = {0, 0}; }), HasSubstr("ascending"));
  EXPECT_THAT(change([](Schedule& s) { s.groups[0].stages = {1}; }),
              HasSubstr("AR of group 0 stands 1 times on rank 0, 0 expected"));
  EXPECT_THAT(change([](Schedule& s) {
                std::erase_if(s.body[1], [](const Action& a) { return a.kind == kAllReduce; });
              }),
              HasSubstr("AR of group 0 stands 0 times on rank 1, 1 expected"));
  EXPECT_THAT(change([](Schedule& s) {
                for (Action& a : s.body[0]) {
                  if (a.kind == kAllReduce) a.stage = 7;
                }
              }),
              HasSubstr("AR names group 7"));
}

TEST(Validate, SingleActions) {
  const auto change = [](const std::function<void(Schedule&)>& how) {
    Schedule s = Flush();  // 0: 0F0 0F1 0B0 0B1 0U0   1: 1F0 1B0 1F1 1B1 1U0
    how(s);
    return FindingsOf(s);
  };
  EXPECT_THAT(change([](Schedule& s) { s.body[0][1].kind = kSendForward; }),
              HasSubstr("transfers are added by lowering @0,1"));
  EXPECT_THAT(change([](Schedule& s) { s.body[0][1].stage = 9; }), HasSubstr("@0,1"));
  EXPECT_THAT(change([](Schedule& s) { s.body[0][1].stage = 1; }),
              HasSubstr("1F1 stands on rank 0, but its stage is placed on rank 1 @0,1"));
  EXPECT_THAT(change([](Schedule& s) { s.body[0][0].overlaps_next = true; }),
              HasSubstr("0F0 overlaps nothing that is a B or an I @0,0"));
  EXPECT_THAT(change([](Schedule& s) { s.body[0][4].overlaps_next = true; }), HasSubstr("@0,4"));
  EXPECT_THAT(change([](Schedule& s) {
                s.body[0].push_back({0, 0, kForward, true});
              }),
              HasSubstr("@0,5"));
  Schedule reduced = Generate("1f1b", {.ranks = 1, .microbatches = 1, .norm = true});
  reduced.body[0].pop_back();  // leaves the AR last
  reduced.body[0].back().overlaps_next = true;
  EXPECT_THAT(FindingsOf(reduced), HasSubstr("0AR0 overlaps nothing that is a B or an I @0,2"));
  Schedule streams = Flush();
  streams.streams = 2;
  streams.placement = {0, 1, 1, 0};
  EXPECT_THAT(FindingsOf(streams), HasSubstr("the micro-batch belongs to stream"));
}

TEST(Validate, Completeness) {
  EXPECT_EQ(FindingsOf(FromCsv("0F0,0I0,0W0\n")), "");
  EXPECT_THAT(FindingsOf(FromCsv("0F0,0F0,0B0\n")), HasSubstr("0F0 is there twice @0,1"));
  EXPECT_THAT(FindingsOf(FromCsv("0F0,0B0,0B0\n")), HasSubstr("0B0 is there twice @0,2"));
  EXPECT_THAT(FindingsOf(FromCsv("0F0,0B0,0I0,0W0\n")), HasSubstr("both a B and an I @0,2"));
  EXPECT_THAT(FindingsOf(FromCsv("0F0,0I0\n")), HasSubstr("0W0 is missing"));
  EXPECT_THAT(FindingsOf(FromCsv("0F0,0W0\n")), HasSubstr("0B0 (or 0I0 with 0W0) is missing"));
  EXPECT_THAT(FindingsOf(FromCsv("0F0,0B0,0W0\n")), HasSubstr("although 0B0 includes it"));
  EXPECT_THAT(FindingsOf(FromCsv("0F0,0F1,0B0\n")), HasSubstr("0B1 (or 0I1 with 0W1) is missing"));
  EXPECT_THAT(FindingsOf(FromCsv("0F0,0B0,0B1\n")), HasSubstr("0F1 is missing"));
  EXPECT_THAT(FindingsOf(FromCsv("0F0,0B0,0U0,0U0\n")), HasSubstr("updated twice a step @0,3"));
  EXPECT_THAT(FindingsOf(FromCsv("0F0,0B0,0U0\n1F0,1B0\n")), HasSubstr("stage 1 has no U"));
}

TEST(Validate, OrderInALane) {
  EXPECT_THAT(FindingsOf(FromCsv("0B0,0F0\n")),
              HasSubstr("0B0 stands before its own forward @0,0"));
  EXPECT_THAT(FindingsOf(FromCsv("0F0,0W0,0I0\n")), HasSubstr("0W0 stands before its own I @0,1"));
  EXPECT_THAT(FindingsOf(FromCsv("0F0,0U0,0B0\n")),
              HasSubstr("0B0 stands after the update that applies its gradient @0,2"));
}

TEST(Validate, VersionsThatDoNotExist) {
  EXPECT_THAT(FindingsOf(Generate("2bw", {.ranks = 4, .microbatches = 2})),
              HasSubstr("version 1 of stage 0 does not exist yet"));
  // A flush schedule may not start the next step's forward before its update.
  Schedule early = Flush();
  early.body[0] = {{0, 0, kForward, false},
                   {1, 0, kForward, false},
                   {0, 0, kBackward, false},
                   {1, 0, kBackward, false},
                   {-1, 0, kUpdate, false}};
  EXPECT_NE(FindingsOf(early), "");
}

TEST(Validate, EndsItsListSomewhere) {
  const Schedule schedule = FromCsv("0F0,0B999\n");
  EXPECT_LE(Validate(schedule).size(), 21u);
  EXPECT_THAT(Validate(schedule).back().message, HasSubstr("not listed"));
}

TEST(Deadlock, TwoRanksThatWaitForEachOther) {
  // Rank 0 wants the gradient of 1 before it sends what rank 1 needs for another one first.
  const Schedule schedule = FromCsv("0F0,0B0,0F1,0B1\n1F1,1F0,1B0,1B1\n");
  EXPECT_TRUE(Validate(schedule).empty());
  try {
    const Program program(schedule, 1);
    FAIL();
  } catch (const ScheduleError& error) {
    ASSERT_EQ(error.findings().size(), 2u);
    EXPECT_EQ(error.findings()[0].message,
              "deadlock on any links: 0B0 (rank 0) → 1B0 (rank 1) → 1F1 → 0F1 (rank 0) → 0B0, each "
              "waiting for the next");
    EXPECT_EQ(error.findings()[1].message, "deadlock: rank 1 waits at 1F1 for 0F1");
    EXPECT_THAT(error.grid(), HasSubstr(">0B0<"));
    EXPECT_THAT(error.grid(), HasSubstr(">1F1<"));
  }
}

TEST(Deadlock, CollectivesInDifferentOrders) {
  Schedule s = Generate("1f1b", {.ranks = 2, .microbatches = 2, .norm = true, .barrier = true});
  EXPECT_NO_THROW(Program(s, 3));
  auto& body = s.body[1];
  const auto first =
      std::find_if(body.begin(), body.end(), [](const Action& a) { return a.kind == kAllReduce; });
  std::swap(*first, *(first + 1));
  try {
    const Program program(s, 3);
    FAIL();
  } catch (const ScheduleError& error) {
    EXPECT_EQ(error.findings()[0].message,
              "deadlock on any links: 0AR0 (rank 0) → 0AR0 (rank 1) → 1AR0 → 1AR0 (rank 0) → 0AR0, "
              "each waiting for the next");
  }
}

std::string Circle(const Schedule& schedule) {
  try {
    const Program program(schedule, 1);
  } catch (const ScheduleError& error) {
    return error.findings()[0].message;
  }
  return "";
}

TEST(Deadlock, OnOneRankAlone) {
  EXPECT_EQ(Circle(FromCsv("1F0,0F0,1B0,0B0\n")),
            "deadlock on any links: 1F0 (rank 0) → 0F0 → 1F0, each waiting for the next");
}

TEST(Deadlock, OfAnOverlappedPairNamesTheHalfThatWaits) {
  EXPECT_EQ(Circle(FromCsv("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1F0,1F1,1B0,1B1\n")),
            "deadlock on any links: 0B0 (rank 0) → 1B0 (rank 1) → 1F1 → 0F1 (rank 0) → 0B0, each "
            "waiting for the next");
}

TEST(Deadlock, OfAnUpdateBeforeItsReduction) {
  Schedule s = Generate("1f1b", {.ranks = 2, .microbatches = 1, .norm = true});
  auto& body = s.body[1];  // 1F0 1B0 0AR0 1U0
  std::swap(body[2], body[3]);
  EXPECT_EQ(Circle(s),
            "deadlock on any links: 1U0 (rank 1) → 0AR0 → 1U0, each waiting for the next");
}

TEST(Deadlock, OfThoseBehindItTellsToo) {
  const Schedule s = FromCsv("0F0,0B0,0F1,0B1\n1F1,1F0,1B0,1B1\n2F0,2F1,2B0,2B1\n");
  try {
    const Program program(s, 1);
    FAIL();
  } catch (const ScheduleError& error) {
    ASSERT_EQ(error.findings().size(), 3u);
    EXPECT_EQ(error.findings()[2].message,
              "deadlock: rank 2 waits at 2F0 for 1F0, behind the circle");
  }
}

TEST(Deadlock, FewerMicrobatchesThanRanksIsNone) {
  for (const char* name : {"gpipe", "1f1b", "pipedream"}) {
    for (int p = 1; p <= 9; ++p) {
      for (int m = 1; m < p; ++m) {
        EXPECT_NO_THROW(Program(Generate(name, {.ranks = p, .microbatches = m}), 3)) << name;
      }
    }
  }
}

/// Damages one schedule in one of the ways a hand or a foreign tool might.
void Damage(Schedule& s, uint64_t seed) {
  const auto pick = [&](uint64_t key, size_t bound) {
    return static_cast<size_t>(UniformBelow(RandomBits(seed, key), bound));
  };
  auto& body = s.body[pick(1, s.body.size())];
  auto& other = s.body[pick(2, s.body.size())];
  if (body.empty()) return;
  const size_t i = pick(3, body.size());
  const auto at = body.begin() + static_cast<std::ptrdiff_t>(i);
  const auto small = static_cast<int>(pick(4, 7)) - 3;
  switch (pick(0, 9)) {
    case 0:
      body.erase(at);
      break;
    case 1:
      body.insert(at, body[pick(5, body.size())]);
      break;
    case 2:
      std::swap(body[i], body[pick(5, body.size())]);
      break;
    case 3:
      at->microbatch += small;
      break;
    case 4:
      at->stage = static_cast<uint16_t>(at->stage + small);
      break;
    case 5:
      at->kind = static_cast<ActionKind>(pick(5, 10));
      break;
    case 6:
      at->overlaps_next = !at->overlaps_next;
      break;
    case 7:
      other.push_back(*at);
      body.erase(body.begin() + static_cast<std::ptrdiff_t>(i));
      break;
    default:
      std::rotate(body.begin(), at, body.end());
  }
}

struct UnitCosts {
  int64_t Of(const RunAction&) const { return 1; }
  int64_t OfOverlap(const RunAction&, const RunAction&) const { return 1; }
  int64_t OfReduction(int) const { return 1; }
};

struct CountingObserver {
  int64_t actions = 0;
  void OnCompute(int, const RunAction&, int64_t, int64_t, int64_t, bool) { ++actions; }
  void OnTransfer(int, const RunAction&, int64_t, int64_t, int64_t, int64_t) {}
  void OnReduce(int, int, int64_t, int64_t, int64_t) {}
};

/// Every compute action of the run is performed: nothing blocks, nothing is lost.
void ExpectRuns(const Program& program) {
  int64_t expected = 0;
  for (int rank = 0; rank < program.schedule().ranks; ++rank) {
    for (LaneWalk walk(program, rank); !walk.done(); walk.Advance()) {
      if (walk.action().kind != kAllReduce) ++expected;
    }
  }
  CountingObserver observer;
  const UnitCosts costs;
  EXPECT_TRUE(Play(program, costs, PlayLinks{.all = {1, 1}}, observer).Run().empty());
  EXPECT_EQ(observer.actions, expected);
  EXPECT_EQ(NeverDelayingSlots(program).size(), program.lanes().size());
}

TEST(Damage, IsFoundOrHarmless) {
  int64_t refused = 0;
  int64_t harmless = 0;
  constexpr uint64_t kCases = 20'000;
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    const auto pick = [&](uint64_t key, size_t bound) {
      return static_cast<int>(UniformBelow(RandomBits(seed, 100 + key), bound));
    };
    const char* names[] = {"gpipe", "1f1b", "pipedream", "2bw"};
    const bool endless = pick(0, 4) >= 2;
    GeneratorOptions options{.ranks = 1 + pick(1, 4), .microbatches = 1 + pick(2, 6)};
    const std::string name = names[(endless ? 2 : 0) + pick(6, 2)];
    if (name != "gpipe") options.warmup_slope = 1 + pick(3, 2);
    options.norm = !endless && pick(4, 2) == 1;
    options.reduction = pick(5, 3) == 0;
    Schedule schedule = Generate(name, options);
    for (int n = 1 + pick(7, 3); n > 0; --n) Damage(schedule, seed * 10 + static_cast<uint64_t>(n));
    try {
      const Program program(schedule, 3);
      ExpectRuns(program);
      ++harmless;
    } catch (const ScheduleError& error) {
      EXPECT_FALSE(error.findings().empty());
      for (const Finding& finding : error.findings()) EXPECT_NE(finding.message, "");
      ++refused;
    }
    if (HasFailure()) FAIL() << "seed " << seed << '\n' << FormatGrid(schedule);
  }
  EXPECT_GT(refused, static_cast<int64_t>(kCases / 2));
  EXPECT_GT(harmless, 100);
}

// What the single pass over a plain schedule lets through has no findings, and it ends exactly if
// it ends when it is played.
TEST(PlainOrder, LetsNothingThrough) {
  int plain = 0;
  int deadlocks = 0;
  for (int n = 0; n < 4000; ++n) {
    constexpr const char* kNames[] = {"gpipe", "1f1b", "eager-1f1b", "zb-h1", "zb-v"};
    Schedule schedule = Generate(kNames[n % 5], {.ranks = 3, .microbatches = 6});
    const auto draw = [&](uint64_t key, size_t bound) {
      return static_cast<size_t>(UniformBelow(RandomBits(static_cast<uint64_t>(n), key), bound));
    };
    if (n % 3 == 1) Damage(schedule, static_cast<uint64_t>(n));
    for (uint64_t i = 0; n % 3 == 2 && i < 6; ++i) {  // an F goes behind or before a B
      auto& body = schedule.body[draw(2 * i, 3)];
      const size_t at = draw(2 * i + 1, body.size() - 1);
      if (body[at].stage == body[at + 1].stage) std::swap(body[at], body[at + 1]);
    }
    if (!ValidateSizes(schedule).empty()) continue;
    if (!FindPlainOrder(schedule)) continue;
    ++plain;
    ASSERT_EQ(FindingsOf(schedule), "") << n;
    const bool ends = PlainOrderEnds(schedule);
    bool lowered = true;
    try {
      const Program program(schedule, 1);
    } catch (const ScheduleError& error) {
      lowered = false;
      EXPECT_THAT(error.what(), HasSubstr("deadlock"));
    }
    ASSERT_EQ(ends, lowered) << n;
    deadlocks += ends ? 0 : 1;
  }
  EXPECT_GT(plain, 1400);
  EXPECT_GT(deadlocks, 0);
}

}  // namespace
}  // namespace pipelag
