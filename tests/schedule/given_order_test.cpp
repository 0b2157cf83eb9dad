// Orders with transfers that a file may give: what is wrong with them is told at the right cell,
// and deadlocks as the circle of those who wait.
#include "models/schedule/given_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/schedule/generators.h"
#include "models/schedule/issue_order.h"
#include "models/schedule/text.h"
#include "tests/schedule/random_schedule.h"
#include "tests/schedule/serial_ranks.h"

namespace pipelag {
namespace {

using testing::HasSubstr;

/// The findings of a CSV, each with its place, or "" if there are none.
std::string FindingsOf(const Schedule& schedule) {
  try {
    const Program program(schedule, 1);
    return "";
  } catch (const ScheduleError& error) {
    std::string text;
    for (const Finding& finding : error.findings()) {
      text += finding.message + " @" + std::to_string(finding.rank) + ',' +
              std::to_string(finding.position) + '\n';
    }
    return text;
  }
}

std::string FindingsOf(std::string_view csv, Sends sends = Sends::kRendezvous) {
  Schedule schedule = ParseCsv(csv, "", "x.csv");
  schedule.sends = sends;
  return FindingsOf(schedule);
}

/// Each send right behind what makes it, each receive right before what needs it.
Schedule AsUsual(Schedule schedule) {
  const auto crosses = [&](int from, int to) {
    return schedule.placement[static_cast<size_t>(from)] !=
           schedule.placement[static_cast<size_t>(to)];
  };
  for (const auto& body : schedule.body) {
    auto& row = schedule.given_order.emplace_back();
    for (size_t i = 0; i < body.size(); ++i) {
      const size_t last = body[i].overlaps_next ? i + 1 : i;
      std::vector<Action> behind;
      std::vector<Action> all(body.begin() + static_cast<std::ptrdiff_t>(i),
                              body.begin() + static_cast<std::ptrdiff_t>(last) + 1);
      for (const Action& a : all) {
        const int hop = IsForward(a.kind) ? 1 : -1;
        if (!IsForward(a.kind) && !YieldsInputGradient(a.kind)) continue;
        const bool forward = IsForward(a.kind);
        if (!(forward ? schedule.IsFirst(a.stage) : schedule.IsLast(a.stage)) &&
            crosses(a.stage - hop, a.stage)) {
          row.push_back({a.microbatch, a.stage,
                         forward ? ActionKind::kReceiveForward : ActionKind::kReceiveBackward});
        }
        if (!(forward ? schedule.IsLast(a.stage) : schedule.IsFirst(a.stage)) &&
            crosses(a.stage, a.stage + hop)) {
          behind.push_back({a.microbatch, a.stage,
                            forward ? ActionKind::kSendForward : ActionKind::kSendBackward});
        }
      }
      row.insert(row.end(), all.begin(), all.end());
      row.insert(row.end(), behind.begin(), behind.end());
      i = last;
    }
  }
  return schedule;
}

TEST(GivenOrder, IsFine) {
  EXPECT_EQ(FindingsOf("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"), "");
  EXPECT_EQ(FindingsOf("0F0,0SEND_F0,0RECV_B0,0I0,0W0\n1RECV_F0,1F0,1I0,1SEND_B0,1W0\n"), "");
}

TEST(GivenOrder, WhatPyTorchDoesForShardedWeightsIsPassedOver) {
  const Schedule schedule = ParseCsv(
      "0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD,0RESHARD\n"
      "1UNSHARD,1RECV_F0,1F0,1B0,1SEND_B0,1RESHARD\n",
      "", "x.csv");
  EXPECT_EQ(ToCsv(schedule, schedule.given_order),
            "0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n");
}

TEST(GivenOrder, EveryMessageIsSentOnceAndReceivedOnce) {
  EXPECT_EQ(FindingsOf("0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1B0,1SEND_B0\n"),
            "0SEND_F0 sends what is never received: rank 1 has no 1RECV_F0 @0,1\n");
  EXPECT_EQ(FindingsOf("0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"),
            "1RECV_F0 receives what is never sent: rank 0 has no 0SEND_F0 @1,0\n");
  EXPECT_EQ(FindingsOf("0F0,0RECV_B0,0B0\n1F0,1B0,1SEND_B0\n"),
            "1F0 gets no message: 0SEND_F0 and 1RECV_F0 are missing @1,0\n");
  EXPECT_EQ(FindingsOf("0F0,0SEND_F0,0RECV_B0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"),
            "0SEND_F0 is there twice @0,3\n");
  EXPECT_EQ(FindingsOf("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1RECV_F0,1B0,1SEND_B0\n"),
            "1RECV_F0 is there twice @1,2\n");
  EXPECT_THAT(FindingsOf("0F0,0SEND_F0,0SEND_F1,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"),
              HasSubstr("0F1 is missing"));
}

TEST(GivenOrder, PeersAreThoseOfThePlacement) {
  EXPECT_EQ(FindingsOf("0F0,0RECV_B0,0B0\n1RECV_F0,0SEND_F0,1F0,1B0,1SEND_B0\n"),
            "0SEND_F0 stands on rank 1, but its stage is placed on rank 0 @1,1\n");
  EXPECT_THAT(FindingsOf("0F0,0SEND_F0,0RECV_B0,0B0,0SEND_B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"),
              HasSubstr("0SEND_B0: there is no stage before to send to @0,4"));
  EXPECT_THAT(FindingsOf("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1SEND_F0,1B0,1SEND_B0\n"),
              HasSubstr("1SEND_F0: there is no stage behind to send to @1,2"));
  EXPECT_THAT(FindingsOf("0RECV_F0,0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"),
              HasSubstr("0RECV_F0: there is no stage before to receive from @0,0"));
  EXPECT_THAT(FindingsOf("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1RECV_B0,1B0,1SEND_B0\n"),
              HasSubstr("1RECV_B0: there is no stage behind to receive from @1,2"));
  EXPECT_THAT(FindingsOf("0F0,0SEND_F0,1F0,1B0,0B0\n"),
              HasSubstr("0SEND_F0: stage 1 stands on rank 0 too, so there is nothing to send"));
  EXPECT_THROW(FindingsOf("0F0,5SEND_F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"),
               Error);
}

TEST(GivenOrder, SendsFollowAndReceivesGoBefore) {
  EXPECT_EQ(FindingsOf("0SEND_F0,0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"),
            "0SEND_F0 stands before 0F0, whose result it sends @0,0\n");
  EXPECT_EQ(FindingsOf("0F0,0SEND_F0,0B0,0RECV_B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"),
            "0RECV_B0 stands behind 0B0, which needs it @0,3\n");
}

TEST(GivenOrder, MessagesOfALaneKeepTheirOrder) {
  const std::string second = "1RECV_F0,1RECV_F1,1F0,1F1,1B0,1SEND_B0,1B1,1SEND_B1\n";
  EXPECT_EQ(FindingsOf("0F0,0F1,0SEND_F1,0SEND_F0,0RECV_B0,0B0,0RECV_B1,0B1\n" + second),
            "0SEND_F1 leaves before 0SEND_F0, though it is made after it: the messages of a lane "
            "keep their order @0,2\n");
  EXPECT_EQ(FindingsOf("0F0,0F1,0SEND_F0,0SEND_F1,0RECV_B1,0RECV_B0,0B0,0B1\n" + second),
            "0RECV_B1 is received before 0RECV_B0, though it is made after it: the messages of a "
            "lane keep their order @0,4\n");
}

// The classic trap: a send that waits for its receive, on both sides.
TEST(GivenOrder, TwoRanksThatBothSendFirst) {
  const std::string both_send =
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
      "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n";
  EXPECT_EQ(FindingsOf(both_send),
            "deadlock under rendezvous sends, though not under eager ones: 0SEND_F1 (rank 0) → "
            "1RECV_F1 (rank 1) → 1SEND_B0 → 0RECV_B0 (rank 0) → 0SEND_F1, each waiting for the "
            "next @0,3\n"
            "deadlock: rank 1 waits at 1SEND_B0 for 0RECV_B0 @1,3\n");
  EXPECT_EQ(FindingsOf(both_send, Sends::kEager), "");
  const std::string both_receive =
      "0F0,0SEND_F0,0RECV_B0,0F1,0SEND_F1,0B0,0RECV_B1,0B1\n"
      "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n";
  for (const Sends sends : {Sends::kEager, Sends::kRendezvous}) {
    EXPECT_THAT(FindingsOf(both_receive, sends),
                HasSubstr("deadlock under eager and rendezvous sends alike: 0RECV_B0 (rank 0) → "
                          "1SEND_B0 (rank 1) → 1RECV_F1 → 0SEND_F1 (rank 0) → 0RECV_B0, each"));
  }
}

// With two ranks and two chunks a rank's one peer is before it and behind it.
TEST(GivenOrder, OnePeerForBothDirections) {
  for (const int m : {2, 4, 8}) {
    const Schedule schedule =
        AsUsual(Generate("interleaved-1f1b", {.ranks = 2, .microbatches = m, .chunks = 2}));
    EXPECT_THAT(FindingsOf(schedule), HasSubstr("deadlock under rendezvous sends, though not"));
    Schedule eager = schedule;
    eager.sends = Sends::kEager;
    EXPECT_EQ(FindingsOf(eager), "");
    const Program program(eager, 2);
    ExpectIssueOrder(program, IssueOrder(program), false);
  }
}

// The usual way works wherever sends are eager, on every schedule; where they are not, what fails
// is what serial ranks fail at.
TEST(GivenOrder, TheUsualWayNeedsEagerSends) {
  int failed = 0;
  int passed = 0;
  for (const Generator& generator : Generators()) {
    for (int p = 1; p <= 5; ++p) {
      for (const int m : {1, 2, 3, 5, 10}) {
        Schedule schedule;
        try {
          schedule = AsUsual(Generate(generator.name, {.ranks = p, .microbatches = m}));
          if (!Validate(schedule).empty()) continue;  // 2bw of too few micro-batches
          schedule.sends = Sends::kEager;
          ASSERT_EQ(FindingsOf(schedule), "") << generator.name << ' ' << p << ' ' << m;
        } catch (const Error&) {
          continue;  // not a shape that this schedule has
        }
        if (p == 1 || !schedule.flushes()) continue;
        const Program program(schedule, 1);
        const bool stuck = !SerialRanks(schedule, IssueOrder(program)).Run().empty();
        schedule.sends = Sends::kRendezvous;
        EXPECT_EQ(FindingsOf(schedule).empty(), !stuck) << generator.name << ' ' << p << ' ' << m;
        ++(stuck ? failed : passed);
      }
    }
  }
  EXPECT_GT(failed, 20);
  EXPECT_GT(passed, 5);
}

TEST(GivenOrder, FewerMicrobatchesThanRanks) {
  for (int p = 2; p <= 7; ++p) {
    for (int m = 1; m < p; ++m) {
      const Program program(Generate("1f1b", {.ranks = p, .microbatches = m}), 1);
      Schedule schedule = program.schedule();
      schedule.given_order = BodyWithTransfers(program);
      EXPECT_EQ(FindingsOf(schedule), "") << p << ' ' << m;
    }
  }
}

// A transfer anywhere else in its row is found, or serial ranks come through.
TEST(GivenOrder, DamageIsFoundOrHarmless) {
  int64_t refused = 0;
  int64_t harmless = 0;
  for (uint64_t n = 0; n < 2000; ++n) {
    Luck luck(33, n);
    Schedule schedule = RandomFlush(luck);
    schedule.given_order = BodyWithTransfers(Program(schedule, 1));
    auto& row = schedule.given_order[static_cast<size_t>(luck.Below(schedule.ranks))];
    std::vector<size_t> transfers;
    for (size_t i = 0; i < row.size(); ++i) {
      if (IsTransfer(row[i].kind)) transfers.push_back(i);
    }
    if (transfers.empty()) continue;
    const size_t from =
        transfers[static_cast<size_t>(luck.Below(static_cast<int64_t>(transfers.size())))];
    const Action moved = row[from];
    row.erase(row.begin() + static_cast<std::ptrdiff_t>(from));
    const int64_t to = luck.Below(static_cast<int64_t>(row.size()) + 1);
    if (to > 0 && row[static_cast<size_t>(to) - 1].overlaps_next) continue;
    if (luck.Chance(90)) row.insert(row.begin() + to, moved);
    if (!FindingsOf(schedule).empty()) {
      ++refused;
      continue;
    }
    const Program program(schedule, 2);
    ExpectIssueOrder(program, IssueOrder(program));
    ++harmless;
    if (HasFailure()) FAIL() << n;
  }
  EXPECT_GT(refused, 300);
  EXPECT_GT(harmless, 50);
}

}  // namespace
}  // namespace pipelag
