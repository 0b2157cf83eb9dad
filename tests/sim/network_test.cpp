// Flows that share channels, against textbook shares; all-reduces against their closed forms.
#include "sim/network.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/error.h"
#include "models/random.h"
#include "sim/collective.h"

namespace pipelag {
namespace {

using ::testing::ElementsAre;

struct FlowSpec {
  std::vector<int> route;
  Bytes bytes = 0;
  int64_t start = 0;
};

/// When each flow ends. Subject of a start event: the flow's place in `specs`.
std::vector<int64_t> Ends(const std::vector<int64_t>& bandwidths,
                          const std::vector<FlowSpec>& specs) {
  enum : unsigned { kStart, kEnd };
  std::vector<Bandwidth> channels;
  for (const int64_t b : bandwidths) channels.push_back({b});
  EventQueue events;
  Network network(channels, events, kEnd);
  std::vector<int> spec_of;
  std::vector<int64_t> ends(specs.size(), -1);
  for (size_t i = 0; i < specs.size(); ++i) {
    events.Push(specs[i].start, kStart, static_cast<int32_t>(i));
  }
  int64_t now = 0;
  while (!events.empty() || !network.settled()) {
    if (!network.settled() && (events.empty() || events.top().time > now)) {
      network.Settle(now);
      continue;
    }
    const QueuedEvent event = events.Pop();
    const auto subject = static_cast<size_t>(event.subject);
    if (event.kind() == kEnd && !network.Stands(event)) continue;
    now = event.time;
    if (event.kind() == kEnd) {
      network.End(event.subject);
      ends[static_cast<size_t>(spec_of[subject])] = now;
      continue;
    }
    const auto flow =
        static_cast<size_t>(network.Start(specs[subject].route, specs[subject].bytes, now));
    spec_of.resize(std::max(spec_of.size(), flow + 1));
    spec_of[flow] = event.subject;
  }
  return ends;
}

TEST(EventQueue, OrdersByTimeThenByEntry) {
  EventQueue queue;
  std::vector<std::pair<int64_t, int32_t>> expected;
  for (int32_t i = 0; i < 2000; ++i) {
    const auto time = static_cast<int64_t>(RandomBits(1, static_cast<uint64_t>(i)) % 50);
    queue.Push(time, static_cast<unsigned>(i % 7), i);
    expected.emplace_back(time, i);
  }
  std::sort(expected.begin(), expected.end());
  for (const auto& [time, subject] : expected) {
    const QueuedEvent event = queue.Pop();
    ASSERT_EQ(event.time, time);
    ASSERT_EQ(event.subject, subject);
    ASSERT_EQ(event.kind(), static_cast<unsigned>(subject % 7));
  }
  EXPECT_TRUE(queue.empty());
}

// 1 byte/ns: bytes are nanoseconds.
constexpr int64_t kGiga = 1'000'000'000;

TEST(Network, AloneTakesBytesOverTheNarrowestChannel) {
  EXPECT_THAT(Ends({kGiga, 3}, {{{0}, 1000, 5}}), ElementsAre(1005));
  EXPECT_THAT(Ends({kGiga, 3}, {{{0, 1}, 1, 0}}), ElementsAre(333'333'334));
  EXPECT_THAT(Ends({kGiga}, {{{0}, int64_t{1} << 40, 0}}), ElementsAre(int64_t{1} << 40));
}

TEST(Network, TwoFlowsShareALink) {
  EXPECT_THAT(Ends({kGiga}, {{{0}, 1000, 0}, {{0}, 1000, 0}}), ElementsAre(2000, 2000));
  // The second joins half way through the first and takes what is left alone.
  EXPECT_THAT(Ends({kGiga}, {{{0}, 1000, 0}, {{0}, 1000, 500}}), ElementsAre(1500, 2000));
  EXPECT_THAT(Ends({kGiga}, {{{0}, 1000, 0}, {{0}, 300, 200}}), ElementsAre(1300, 800));
}

TEST(Network, ThirdsAreExact) {
  for (const int64_t n : {3, 7, 11, 13}) {
    const std::vector<FlowSpec> flows(static_cast<size_t>(n), FlowSpec{{0}, 1'000'003, 0});
    for (const int64_t end : Ends({kGiga}, flows)) ASSERT_EQ(end, n * 1'000'003);
  }
  // Coming one after the other, the last flow still ends when all bytes have passed.
  std::vector<FlowSpec> late;
  for (int64_t i = 0; i < 13; ++i) late.push_back({{0}, 1'000'000, 977 * i});
  const std::vector<int64_t> ends = Ends({kGiga}, late);
  // Each of the earlier ends waits for a whole nanosecond.
  EXPECT_GE(*std::max_element(ends.begin(), ends.end()), 13'000'000);
  EXPECT_LT(*std::max_element(ends.begin(), ends.end()), 13'000'013);
}

// Bertsekas and Gallager, Data Networks, 6.5.2: one long flow across links of unequal load.
TEST(Network, ParkingLotIsMaxMinFair) {
  // Long flow over both; two more on link 0, one more on link 1: a third each on link 0, and two
  // thirds for the lonely one on link 1.
  EXPECT_THAT(Ends({kGiga, kGiga}, {{{0, 1}, 100, 0}, {{0}, 100, 0}, {{0}, 100, 0}, {{1}, 200, 0}}),
              ElementsAre(300, 300, 300, 300));
  // Unequal links: link 1 of 2 leaves 2 − 1/3 to its own flow.
  EXPECT_THAT(
      Ends({kGiga, 2 * kGiga}, {{{0, 1}, 100, 0}, {{0}, 100, 0}, {{0}, 100, 0}, {{1}, 500, 0}}),
      ElementsAre(300, 300, 300, 300));
  // Four links in a row, each with a flow of its own: half each.
  EXPECT_THAT(Ends({kGiga, kGiga, kGiga, kGiga},
                   {{{0, 1, 2, 3}, 50, 0}, {{0}, 50, 0}, {{1}, 50, 0}, {{2}, 50, 0}, {{3}, 50, 0}}),
              ElementsAre(100, 100, 100, 100, 100));
  // Nested bottlenecks: 1/3 on the first, (2 − 1/3)/2 on the second, the rest on the third.
  EXPECT_THAT(Ends({kGiga, 2 * kGiga, 3 * kGiga}, {{{0}, 20, 0},
                                                   {{0}, 20, 0},
                                                   {{0, 1}, 20, 0},
                                                   {{1}, 50, 0},
                                                   {{1, 2}, 50, 0},
                                                   {{2}, 130, 0}}),
              ElementsAre(60, 60, 60, 60, 60, 60));
}

TEST(Network, AnotherFlowNeverShortens) {
  for (uint64_t run = 0; run < 300; ++run) {
    const auto draw = [&](uint64_t a, uint64_t b, uint64_t bound) {
      return static_cast<int64_t>(UniformBelow(RandomBits(run, a, b), bound));
    };
    std::vector<int64_t> bandwidths;
    for (uint64_t c = 0; c < 4; ++c) bandwidths.push_back(kGiga + draw(1, c, 5) * kGiga / 3);
    std::vector<FlowSpec> flows;
    for (uint64_t f = 0; f < 6; ++f) {
      FlowSpec flow{{}, 1 + draw(2, f, 5000), draw(3, f, 3000)};
      for (int c = 0; c < 4; ++c) {
        if (draw(4 + f, static_cast<uint64_t>(c), 2) == 1) flow.route.push_back(c);
      }
      if (flow.route.empty()) flow.route = {0};
      flows.push_back(flow);
    }
    // All bytes of a channel pass it no faster than it is wide, and nobody is faster than alone.
    const std::vector<int64_t> ends = Ends(bandwidths, flows);
    for (size_t f = 0; f < flows.size(); ++f) {
      ASSERT_GE(ends[f], Ends(bandwidths, {flows[f]})[0]) << run;
    }
    // In another order: the same, since the sharing knows no order.
    std::vector<FlowSpec> reversed(flows.rbegin(), flows.rend());
    std::vector<int64_t> back = Ends(bandwidths, reversed);
    std::reverse(back.begin(), back.end());
    ASSERT_EQ(back, ends) << run;
  }
}

// Work conservation on one channel: whatever joins when, it is busy until the last byte, but for
// what ends lose by falling on whole nanoseconds.
TEST(Network, OneChannelIsNeverIdleWhileBytesWait) {
  for (uint64_t run = 0; run < 200; ++run) {
    std::vector<FlowSpec> flows;
    int64_t busy_until = 0;
    for (uint64_t f = 0; f < 9; ++f) {
      const auto start = static_cast<int64_t>(1000 * f + RandomBits(run, f) % 1000);
      const auto bytes = static_cast<Bytes>(1 + RandomBits(run, f, 1) % 3000);
      flows.push_back({{0}, bytes, start});
      busy_until = std::max(busy_until, start) + bytes;
    }
    const std::vector<int64_t> ends = Ends({kGiga}, flows);
    ASSERT_GE(*std::max_element(ends.begin(), ends.end()), busy_until) << run;
    ASSERT_LT(*std::max_element(ends.begin(), ends.end()), busy_until + 9) << run;
  }
}

/// Plays rounds over wires of their own: the time of an all-reduce alone.
int64_t AloneTime(const std::vector<CollectiveRound>& rounds, Bandwidth bandwidth,
                  int64_t latency) {
  int64_t time = 0;
  for (const CollectiveRound& round : rounds) {
    Bytes most = 0;
    for (const CollectiveMessage& message : round.messages) most = std::max(most, message.bytes);
    time += round.repeats * (TransferTime(most, bandwidth).count() + latency);
  }
  return time;
}

TEST(Collective, ClosedForms) {
  const Bandwidth bandwidth{25 * kGiga};
  for (int n = 1; n <= 17; ++n) {
    std::vector<int> members;
    for (int i = 0; i < n; ++i) members.push_back(10 + i);
    const std::vector<int> nodes = members;
    for (const Bytes bytes : {Bytes{0}, Bytes{4}, Bytes{1'000'000}, Bytes{123'456'789}}) {
      const auto time = [&](ReductionAlgorithm algorithm) {
        return AloneTime(AllReduceRounds(algorithm, members, nodes, bytes), bandwidth, 700);
      };
      const Bytes piece = (bytes + n - 1) / n;
      const int64_t ring = 2 * (n - 1) * (TransferTime(piece, bandwidth).count() + 700);
      EXPECT_EQ(time(ReductionAlgorithm::kRing), ring);
      int doublings = 0;
      while ((1 << doublings) < n) ++doublings;
      EXPECT_EQ(time(ReductionAlgorithm::kTree),
                2 * doublings * (TransferTime(bytes, bandwidth).count() + 700));
      EXPECT_EQ(time(ReductionAlgorithm::kHierarchical), ring);  // one per node
    }
  }
}

/// Carries sets of contributions along the tree's messages: everybody must end with all of them.
TEST(Collective, TreeReachesEverybody) {
  for (int n = 2; n <= 33; ++n) {
    std::vector<int> members;
    for (int i = 0; i < n; ++i) members.push_back(i);
    std::vector<uint64_t> has;
    for (int i = 0; i < n; ++i) has.push_back(uint64_t{1} << i);
    for (const CollectiveRound& round :
         AllReduceRounds(ReductionAlgorithm::kTree, members, members, 1)) {
      const std::vector<uint64_t> before = has;
      for (const CollectiveMessage& m : round.messages) {
        has[static_cast<size_t>(m.receiver)] |= before[static_cast<size_t>(m.sender)];
      }
    }
    for (const uint64_t set : has) ASSERT_EQ(set, (uint64_t{1} << n) - 1) << n;
  }
}

TEST(Collective, HierarchicalRounds) {
  const std::vector<CollectiveRound> rounds =
      AllReduceRounds(ReductionAlgorithm::kHierarchical, {0, 1, 2, 3}, {7, 7, 9, 9}, 1001);
  ASSERT_EQ(rounds.size(), 3u);
  EXPECT_THAT(rounds[0].messages,
              ElementsAre(CollectiveMessage{0, 1, 501}, CollectiveMessage{1, 0, 501},
                          CollectiveMessage{2, 3, 501}, CollectiveMessage{3, 2, 501}));
  EXPECT_EQ(rounds[1].repeats, 2);
  EXPECT_THAT(rounds[1].messages,
              ElementsAre(CollectiveMessage{0, 2, 251}, CollectiveMessage{2, 0, 251},
                          CollectiveMessage{1, 3, 251}, CollectiveMessage{3, 1, 251}));
  EXPECT_THROW(AllReduceRounds(ReductionAlgorithm::kHierarchical, {0, 1, 2}, {7, 7, 9}, 1), Error);
}

}  // namespace
}  // namespace pipelag
