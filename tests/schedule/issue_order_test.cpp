// The one order over all lanes: blocking, serial ranks come through with it on every schedule, and
// it survives a CSV with transfers.
#include "models/schedule/issue_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/schedule/generators.h"
#include "models/schedule/text.h"
#include "tests/schedule/random_schedule.h"
#include "tests/schedule/serial_ranks.h"

namespace pipelag {
namespace {

/// The generators' schedules of a size, with whatever variant makes their messages differ.
std::vector<Schedule> SchedulesOf(std::string_view name, int p, int m) {
  std::vector<GeneratorOptions> all;
  for (const bool groups : {false, true}) {
    const GeneratorOptions plain{
        .ranks = p, .microbatches = m, .reduction = groups, .norm = groups};
    all.push_back(plain);
    all.push_back(plain);
    all.back().warmup_slope = 3;
    for (const int chunks : {2, 3}) {
      all.push_back(plain);
      all.back().chunks = chunks;
    }
    for (const char* body : {"interleaved-1f1b", "zb-h1", "zb-h2", "zb-v"}) {
      all.push_back(plain);
      all.back().body = body;
    }
  }
  std::vector<Schedule> schedules;
  for (const GeneratorOptions& options : all) {
    try {
      schedules.push_back(Program(Generate(name, options), 1).schedule());
    } catch (const Error&) {  // not a shape that this schedule has
    }
  }
  return schedules;
}

TEST(IssueOrder, BlockingSerialRanksComeThroughOnEverySchedule) {
  for (const Generator& generator : Generators()) {
    int seen = 0;
    for (int p = 1; p <= 5; ++p) {
      for (const int m : {1, 2, 3, 5, 8, 12}) {
        for (const Schedule& schedule : SchedulesOf(generator.name, p, m)) {
          const Program program(schedule, schedule.flushes() ? 2 : 5);
          SCOPED_TRACE(testing::Message() << generator.name << ' ' << p << ' ' << m);
          ExpectIssueOrder(program, IssueOrder(program));
          if (testing::Test::HasFailure()) return;
          ++seen;
        }
      }
    }
    EXPECT_GE(seen, 6) << generator.name;
  }
}

TEST(IssueOrder, BlockingSerialRanksComeThroughOnRandomSchedules) {
  for (uint64_t n = 0; n < 600; ++n) {
    Luck luck(31, n);
    const Program flush(RandomFlush(luck), luck.Between(1, 3));
    ExpectIssueOrder(flush, IssueOrder(flush));
    const Program endless(RandomEndless(luck), luck.Between(1, 6));
    ExpectIssueOrder(endless, IssueOrder(endless));
    if (HasFailure()) FAIL() << n << '\n' << FormatGrid(endless.schedule());
  }
}

// Worked by hand: everything takes one unit, a message too.
TEST(IssueOrder, IsKeyedByUnitStartTimes) {
  const Program program(Generate("1f1b", {.ranks = 2, .microbatches = 2}), 1);
  const Orders orders = IssueOrder(program);
  const auto text = [&](size_t rank) {
    std::string all;
    for (const RunAction& a : orders[rank]) {
      all += std::to_string(a.stage) + std::string(KindName(a.kind)) +
             std::to_string(a.microbatch) + ' ';
    }
    return all;
  };
  EXPECT_EQ(text(0), "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1 0U0 ");
  EXPECT_EQ(text(1), "1RECV_F0 1RECV_F1 1F0 1B0 1SEND_B0 1F1 1B1 1SEND_B1 1U0 ");
}

/// As a file would bring it.
Schedule Reread(const Program& program) {
  const Schedule& schedule = program.schedule();
  return ParseCsv(ToCsv(schedule, BodyWithTransfers(program)),
                  CsvIsComplete(schedule) ? "" : ToCsvSidecar(schedule), "x.csv");
}

void ExpectRoundTrip(const Schedule& schedule) {
  const Program program(schedule, 1);
  const Schedule read = Reread(program);
  ASSERT_EQ(read.body, schedule.body);
  ASSERT_EQ(read.placement, schedule.placement);
  if (program.lanes().empty()) {
    ASSERT_TRUE(read.given_order.empty());
    return;
  }
  ASSERT_EQ(read.given_order, BodyWithTransfers(program));
  const Program again(read, schedule.flushes() ? 3 : 7);
  ASSERT_EQ(Reread(again).given_order, read.given_order);
  ExpectIssueOrder(again, IssueOrder(again));
}

TEST(IssueOrder, SurvivesACsvWithTransfers) {
  for (const Generator& generator : Generators()) {
    for (int p = 1; p <= 4; ++p) {
      for (const int m : {1, 2, 4, 5, 8}) {
        for (const Schedule& schedule : SchedulesOf(generator.name, p, m)) {
          SCOPED_TRACE(testing::Message() << generator.name << ' ' << p << ' ' << m);
          ExpectRoundTrip(schedule);
          if (testing::Test::HasFailure()) return;
        }
      }
    }
  }
  for (uint64_t n = 0; n < 300; ++n) {
    Luck luck(32, n);
    const Schedule schedule = RandomFlush(luck);
    const bool idle_rank = std::any_of(schedule.body.begin(), schedule.body.end(),
                                       [](const auto& body) { return body.empty(); });
    if (idle_rank) continue;  // a CSV has no line for a rank that does nothing
    SCOPED_TRACE(n);
    ExpectRoundTrip(schedule);
    if (testing::Test::HasFailure()) return;
  }
}

TEST(IssueOrder, OfAnEndlessBodySurvivesACsvToo) {
  for (uint64_t n = 0; n < 400; ++n) {
    Luck luck(34, n);
    const Schedule schedule = RandomEndless(luck);
    const bool idle_rank = std::any_of(schedule.body.begin(), schedule.body.end(),
                                       [](const auto& body) { return body.empty(); });
    if (idle_rank) continue;
    SCOPED_TRACE(n);
    ExpectRoundTrip(schedule);
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace pipelag
