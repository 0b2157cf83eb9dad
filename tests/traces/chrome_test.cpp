// Chrome traces: what viewers need of them, and that nothing is lost on the way there and back.
#include "traces/chrome.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "models/error.h"
#include "tests/traces/sample.h"

namespace pipelag {
namespace {

using Json = nlohmann::json;
using sample::Act;
using sample::Empty;
using sample::Transfer;
using testing::HasSubstr;

Json EventsOf(const std::string& text) { return Json::parse(text)["traceEvents"]; }

TEST(Chrome, SurvivesTheWayThereAndBackFieldByField) {
  for (const int64_t longest : {int64_t{12}, int64_t{5'000'000}, int64_t{1} << 53}) {
    for (uint64_t seed = 0; seed < 400; ++seed) {
      const Trace trace = sample::Random(seed, longest);
      const ChromeOptions options{.flows = seed % 2 == 0, .critical_path = seed % 3 == 0};
      const Trace back = ParseChrome(ToChrome(trace, options), "x.json");
      ASSERT_EQ(back.spans.size(), trace.spans.size());
      for (size_t i = 0; i < back.spans.size(); ++i) {
        const Span& a = trace.spans[i];
        const Span& b = back.spans[i];
        ASSERT_EQ(a, b) << SpanName(a) << " " << a.start.count() << ".." << a.end.count() << " vs "
                        << SpanName(b) << " " << b.start.count() << ".." << b.end.count()
                        << " seed " << seed;
      }
      ASSERT_EQ(back, trace);
    }
  }
}

struct Interval {
  double start = 0;
  double end = 0;
  std::string name;
};

/// Slices by thread as a viewer computing in doubles sees them, times `unit` (microseconds: 1), cut
/// off to whole ones if `whole`.
std::map<std::pair<int, int>, std::vector<Interval>> Slices(const std::string& text, double unit,
                                                            bool whole) {
  std::map<std::pair<int, int>, std::vector<Interval>> slices;
  const auto shown = [&](double time) { return whole ? std::trunc(time * unit) : time * unit; };
  for (const Json& event : EventsOf(text)) {
    if (event["ph"] != "X") continue;
    const double start = shown(event["ts"].get<double>());
    const double end = start + shown(event["dur"].get<double>());
    slices[{event["pid"], event["tid"]}].push_back({start, end, event["name"]});
  }
  return slices;
}

TEST(Chrome, SlicesOfAThreadAreDisjointForEveryViewer) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    const std::string text =
        ToChrome(sample::Random(seed, 3'600'000'000'000), {.critical_path = true});
    for (const bool whole : {false, true}) {
      for (const auto& [thread, slices] : Slices(text, whole ? 1000 : 1, whole)) {
        const double first = slices.front().start;
        for (size_t i = 1; i < slices.size(); ++i) {
          const Interval& a = slices[i - 1];
          const Interval& b = slices[i];
          ASSERT_LE(a.end, b.start) << a.name << " and " << b.name << " seed " << seed;
          // speedscope counts from the first slice of a thread.
          ASSERT_LE((a.start - first) + (a.end - a.start), b.start - first);
        }
      }
    }
  }
}

TEST(Chrome, ZeroLengthSlicesStandBetweenTheirNeighbours) {
  Trace trace = Empty(1, 1, 1);
  trace.spans = {
      Act(0, ActionKind::kUpdate, 0, 1000, 1000), Act(0, ActionKind::kUpdate, 1, 1000, 1000),
      Act(0, ActionKind::kForward, 2, 1000, 2000), Act(0, ActionKind::kBackward, 0, 0, 1000)};
  SortSpans(trace);
  const auto slices = Slices(ToChrome(trace), 1, false).at({0, 0});
  ASSERT_EQ(slices.size(), 4U);
  EXPECT_EQ(slices[1].name, "0U0");
  for (size_t i = 0; i < 4; ++i) EXPECT_LT(slices[i].start, slices[i].end);
  for (size_t i = 1; i < 4; ++i) EXPECT_LT(slices[i - 1].end, slices[i].start);
  EXPECT_EQ(ParseChrome(ToChrome(trace), "x"), trace);
}

TEST(Chrome, EventsAreSortedAndIdsSmall) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const Trace trace = sample::Random(seed, 5'000);
    double last = 0;
    for (const Json& event : EventsOf(ToChrome(trace, {.flows = true}))) {
      EXPECT_LE(last, event["ts"].get<double>());
      last = event["ts"].get<double>();
      EXPECT_LT(event["pid"].get<int>(), trace.ranks);
      EXPECT_LE(event.value("tid", 0), 5 * trace.ranks + 1);
    }
  }
}

TEST(Chrome, NamesProcessesAndThreadsInReadingOrder) {
  using enum ActionKind;
  Trace trace = Empty(2, 1, 1);
  trace.spans = {Act(0, kForward, 0, 0, 10), Transfer(0, kSendForward, 1, 0, 10, 12),
                 Transfer(0, kReceiveBackward, 1, 0, 20, 25), Act(0, kAllReduce, 0, 30, 40),
                 Act(1, kForward, 0, 15, 20)};
  std::map<std::pair<int, int>, std::string> threads;
  std::vector<std::string> processes;
  std::map<std::pair<int, int>, int> order;
  for (const Json& event : EventsOf(ToChrome(trace))) {
    if (event["ph"] != "M") continue;
    const std::pair<int, int> id(event["pid"], event["tid"]);
    if (event["name"] == "thread_name") threads[id] = event["args"]["name"];
    if (event["name"] == "thread_sort_index") order[id] = event["args"]["sort_index"];
    if (event["name"] == "process_name") processes.push_back(event["args"]["name"]);
  }
  EXPECT_EQ(processes, (std::vector<std::string>{"rank 0", "rank 1"}));
  std::vector<std::string> names;
  int last = -1;
  for (const auto& [id, name] : threads) {
    names.push_back(name);
    if (id.first != 0) continue;
    EXPECT_LT(last, order.at(id));
    last = order.at(id);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"compute", "send F to rank 1", "receive B from rank 1",
                                             "reduce", "compute"}));
  EXPECT_EQ(threads.at({1, 1}), "compute");  // tid = pid: the main thread
}

TEST(Chrome, OverlappingDeliveriesAreCutForViewersOnly) {
  using enum ActionKind;
  Trace trace = Empty(2, 2, 1);
  trace.spans = {Transfer(1, kReceiveForward, 0, 0, 0, 5500),
                 Transfer(1, kReceiveForward, 0, 1, 2000, 7500)};
  const Json events = EventsOf(ToChrome(trace));
  const Json& first = events[events.size() - 2];
  EXPECT_EQ(first["name"], "1RECV_F0");
  EXPECT_EQ(first["dur"].dump(), "1.99995");
  EXPECT_EQ(first["args"]["end_ns"], 5500);
  EXPECT_EQ(events.back()["dur"].dump(), "5.5");
  EXPECT_EQ(ParseChrome(ToChrome(trace), "x"), trace);
}

TEST(Chrome, HalvesOfAnOverlapAreOneSlice) {
  Trace trace = Empty(1, 4, 1);
  trace.spans = {Act(0, ActionKind::kForward, 3, 10, 40), Act(0, ActionKind::kBackward, 1, 10, 40)};
  trace.spans[0].overlapped = trace.spans[1].overlapped = true;
  const auto slices = Slices(ToChrome(trace), 1, false);
  ASSERT_EQ(slices.at({0, 0}).size(), 1U);
  EXPECT_EQ(slices.at({0, 0})[0].name, "0F3+0B1");
}

TEST(Chrome, CountsActivationsAndVersions) {
  using enum ActionKind;
  Trace trace = Empty(1, 1, 2);
  trace.spans = {Act(0, kForward, 0, 0, 10), Act(0, kBackward, 0, 10, 30),
                 Act(0, kUpdate, 0, 30, 35)};
  trace.spans[2].weight_version = 1;
  std::vector<std::string> counters;
  for (const Json& event : EventsOf(ToChrome(trace))) {
    if (event["ph"] == "C") {
      counters.push_back(event["ts"].dump() + " " + event["name"].get<std::string>() + " " +
                         event["args"].dump());
    }
  }
  EXPECT_THAT(counters, testing::ElementsAre("0 activations in flight {\"activations\":1}",
                                             "0 weight version of stage 0 {\"version\":0}",
                                             "0.03 activations in flight {\"activations\":0}",
                                             "0.035 weight version of stage 0 {\"version\":1}"));
}

TEST(Chrome, ShowsTheCriticalPathBehindTheRanks) {
  const Trace trace = sample::GPipe(2, 2, 1, 10, 20, 3);
  std::vector<std::string> pieces;
  for (const Json& event : EventsOf(ToChrome(trace, {.critical_path = true}))) {
    if (event["pid"] != 2 || event["ph"] != "X") continue;
    EXPECT_EQ(event["tid"], 2);
    EXPECT_EQ(event["cat"], "critical path");
    pieces.push_back(event["name"].get<std::string>() + " on " + event["args"]["rank"].dump());
  }
  // At a tie (0B0 ends when the message of 1B1 arrives) the path stays on its lane.
  EXPECT_THAT(pieces,
              testing::ElementsAre("0F0 on 0", "latency before 1F0 on 1", "1F0 on 1", "1F1 on 1",
                                   "1B0 on 1", "latency before 0B0 on 0", "0B0 on 0", "0B1 on 0"));
}

TEST(Chrome, CountsMemory) {
  const Trace trace = sample::GPipe(1, 1, 1, 10, 20, 0);
  const MemorySizes sizes{{{.weights = 100, .activation = 7}}, 0};
  const auto memory = MemoryOverTime(trace, sizes, {{.weights = 100}});
  std::vector<std::string> counters;
  for (const Json& event : EventsOf(ToChrome(trace, {.memory = &memory}))) {
    if (event["name"] == "memory") {
      counters.push_back(event["ts"].dump() + " " + event["args"]["bytes"].dump());
    }
  }
  EXPECT_THAT(counters, testing::ElementsAre("0 107", "0.03 100"));
}

TEST(Chrome, FlowsLieInsideTheirSlices) {
  using enum ActionKind;
  Trace trace = Empty(2, 3, 1);
  trace.spans = {
      Transfer(0, kSendForward, 1, 0, 10, 20),    Transfer(0, kSendForward, 1, 1, 20, 30),
      Transfer(0, kSendForward, 1, 2, 40, 40),    Transfer(1, kReceiveForward, 0, 0, 5, 25),
      Transfer(1, kReceiveForward, 0, 1, 20, 35), Transfer(1, kReceiveForward, 0, 2, 40, 45)};
  const std::string text = ToChrome(trace, {.flows = true});
  EXPECT_THAT(ToChrome(trace), testing::Not(HasSubstr("\"ph\":\"s\"")));
  const auto slices = Slices(text, 1, false);
  int starts = 0;
  int ends = 0;
  for (const Json& event : EventsOf(text)) {
    if (event["ph"] != "s" && event["ph"] != "f") continue;
    ++(event["ph"] == "s" ? starts : ends);
    const double at = event["ts"];
    bool inside = false;
    for (const Interval& slice : slices.at({event["pid"], event["tid"]})) {
      inside = inside || (slice.start <= at && at < slice.end);
    }
    EXPECT_TRUE(inside) << event;
  }
  EXPECT_EQ(starts, 2);  // the third has no length to start from
  EXPECT_EQ(ends, 2);
}

TEST(Chrome, SeveralTracesStandSideBySide) {
  const Trace trace = sample::GPipe(2, 2, 1, 10, 20, 0);
  const std::string text = ToChrome({{"measured", &trace}, {"simulated", &trace}});
  std::set<std::string> names;
  std::set<int> pids;
  for (const Json& event : EventsOf(text)) {
    pids.insert(event["pid"].get<int>());
    if (event["name"] == "process_name") names.insert(event["args"]["name"].get<std::string>());
  }
  EXPECT_EQ(pids, (std::set<int>{0, 1, 2, 3}));
  EXPECT_EQ(names, (std::set<std::string>{"measured rank 0", "measured rank 1", "simulated rank 0",
                                          "simulated rank 1"}));
  EXPECT_THROW(ParseChrome(text, "x"), Error);
}

TEST(Chrome, SortsWhatIsNotSorted) {
  Trace trace = sample::GPipe(2, 2, 2, 10, 20, 3);
  const Trace sorted = trace;
  std::reverse(trace.spans.begin(), trace.spans.end());
  EXPECT_EQ(ParseChrome(ToChrome(trace), "x"), sorted);
}

}  // namespace
}  // namespace pipelag
