// Files that are no traces of ours, or no longer: each refused with its place.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "models/error.h"
#include "tests/traces/sample.h"
#include "traces/chrome.h"
#include "traces/metrics.h"

namespace pipelag {
namespace {

using Json = nlohmann::json;
using testing::HasSubstr;

/// What reading `text` fails with; empty if it does not.
std::string Complaint(const std::string& text) {
  try {
    ParseChrome(text, "t.json");
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

Trace Small() {
  Trace trace = sample::Empty(2, 1, 1);
  trace.spans = {sample::Act(0, ActionKind::kForward, 0, 0, 10),
                 sample::Transfer(1, ActionKind::kReceiveForward, 0, 0, 10, 15)};
  return trace;
}

TEST(ChromeErrors, EveryTruncationIsNoticed) {
  const std::string text = ToChrome(sample::GPipe(2, 2, 2, 10, 20, 3), {.flows = true});
  ASSERT_EQ(text.back(), '\n');
  ASSERT_EQ(Complaint(text), "");
  ASSERT_EQ(Complaint(text.substr(0, text.size() - 1)), "");  // the last line end alone
  for (size_t length = 0; length + 1 < text.size(); ++length) {
    const std::string complaint = Complaint(text.substr(0, length));
    ASSERT_THAT(complaint, testing::StartsWith("t.json: ")) << "cut at byte " << length;
  }
}

TEST(ChromeErrors, NoDamagedByteDoesMoreThanFail) {
  const std::string text = ToChrome(sample::GPipe(2, 2, 2, 10, 20, 3));
  sample::Luck luck(7);
  for (size_t at = 0; at < text.size(); ++at) {
    std::string damaged = text;
    damaged[at] = "09-.e\"{}[],:x\xff"[luck.Below(14)];
    try {
      ComputeMetrics(ParseChrome(damaged, "t.json"));
    } catch (const Error&) {
    }
  }
}

TEST(ChromeErrors, WhatIsNotATraceOfOurs) {
  EXPECT_EQ(Complaint(""), "t.json: is empty");
  for (const char* text : {"{}", "[]", "3", "null", "hello", R"({"traceEvents":[]})",
                           R"([{"ph":"B","ts":1}])", R"({"traceEvents":[{"ph":"B"}]})"}) {
    EXPECT_THAT(Complaint(text), HasSubstr("not a trace written by pipelag")) << text;
  }
  for (const char* text : {R"("pipelag")", R"(["pipelag"])", R"([{"a":"pipelag"}])"}) {
    EXPECT_THAT(Complaint(text), HasSubstr("not a trace written by pipelag")) << text;
  }
  EXPECT_THAT(Complaint(R"({"pipelag":{}})"), HasSubstr("traceEvents: is missing"));
  EXPECT_THAT(Complaint(R"({"pipelag":{},"traceEvents":{}})"),
              HasSubstr("traceEvents: is missing"));
  EXPECT_THAT(Complaint(R"({"pipelag":{},"traceEvents":[]})"),
              HasSubstr("pipelag.schedule: is missing"));
  EXPECT_THAT(Complaint(R"({"pipelag":{},"traceEvents":[7]})"),
              HasSubstr("traceEvents[0]: expected an object, not a whole number"));
  EXPECT_THAT(Complaint(ToChrome(Small()) + "x"), HasSubstr("not valid JSON at byte"));
  EXPECT_THROW(ReadChrome("/nowhere/at/all.json"), Error);
}

struct Damage {
  const char* pointer;  ///< into the document
  const char* value;    ///< JSON; "" to remove
  const char* complaint;
};

class ChromeDamage : public testing::TestWithParam<Damage> {};

TEST_P(ChromeDamage, IsReportedWithItsPlace) {
  Json document = Json::parse(ToChrome(Small()));
  // Metadata and counters out of the way: event 0 is the F, event 1 the RECV_F.
  Json slices = Json::array();
  for (const Json& event : document["traceEvents"]) {
    if (event["ph"] == "X") slices.push_back(event);
  }
  document["traceEvents"] = slices;
  ASSERT_EQ(Complaint(document.dump()), "");
  const Json::json_pointer pointer(GetParam().pointer);
  if (*GetParam().value == '\0') {
    document[pointer.parent_pointer()].erase(pointer.back());
  } else {
    document[pointer] = Json::parse(GetParam().value);
  }
  EXPECT_EQ(Complaint(document.dump()), std::string("t.json: ") + GetParam().complaint);
}

INSTANTIATE_TEST_SUITE_P(
    OneByOne, ChromeDamage,
    testing::Values(
        Damage{"/pipelag/replicas", "3",
               "pipelag.replicas: 3 is out of range, it must be from 1 to 2"},
        Damage{"/pipelag/replicas", "2",
               "pipelag.replicas: 2 replicas cannot share 1 micro-batches of a step"},
        Damage{"/traceEvents/0/ph", "", "traceEvents[0].ph: is missing"},
        Damage{"/traceEvents/0/ph", "\"B\"",
               "traceEvents[0].ph: 'B' is none of the phases X, M, C, s, f"},
        Damage{"/traceEvents/0/ts", "", "traceEvents[0].ts: is missing"},
        Damage{"/traceEvents/1/dur", "", "traceEvents[1].dur: is missing"},
        Damage{"/traceEvents/1/dur", "-0.001", "traceEvents[1].dur: must not be negative"},
        Damage{"/traceEvents/1/dur", "\"5\"",
               "traceEvents[1].dur: expected a number of microseconds, not a text"},
        Damage{"/traceEvents/1/ts", "1e300", "traceEvents[1].ts: is too large a time"},
        Damage{"/traceEvents/1/ts", "99999999999999999999999",
               "traceEvents[1].ts: is too large a time"},
        Damage{"/traceEvents/0/pid", "", "traceEvents[0].pid: is missing"},
        Damage{"/traceEvents/0/pid", "2",
               "traceEvents[0].pid: rank 2 is out of range, there are 2"},
        Damage{"/traceEvents/0/pid", "-1",
               "traceEvents[0].pid: -1 is out of range, it must be from 0 to 2147483647"},
        Damage{"/traceEvents/0/args", "", "traceEvents[0].args.kind: is missing"},
        Damage{"/traceEvents/0/args", "3", "traceEvents[0].args.kind: is missing"},
        Damage{"/traceEvents/0/args/kind", "\"G\"",
               "traceEvents[0].args.kind: is not the name of a kind of action"},
        Damage{"/traceEvents/0/args/kind", "1",
               "traceEvents[0].args.kind: expected a text, not a whole number"},
        Damage{"/traceEvents/0/args/stage", "", "traceEvents[0].args.stage: is missing"},
        Damage{"/traceEvents/0/args/stage", "5",
               "traceEvents[0].args.stage: stage 5 is out of range, there are 2"},
        Damage{"/traceEvents/0/args/microbatch", "", "traceEvents[0].args.microbatch: is missing"},
        Damage{"/traceEvents/0/args/microbatch", "1.5",
               "traceEvents[0].args.microbatch: expected a whole number, not a number"},
        Damage{"/traceEvents/0/args/wait_ns", "-1",
               "traceEvents[0].args.wait_ns: -1 is out of range, it must be from 0 to "
               "1152921504606846976"},
        Damage{"/traceEvents/0/args/overlapped", "1",
               "traceEvents[0].args.overlapped: expected true or false, not a whole number"},
        Damage{"/traceEvents/0/args/end_ns", "9",
               "traceEvents[0].args.end_ns: 9 is out of range, it must be from 10 to "
               "2305843009213693952"},
        Damage{"/traceEvents/1/args/peer", "", "traceEvents[1].args.peer: is missing"},
        Damage{"/traceEvents/1/args/peer", "2",
               "traceEvents[1].args.peer: rank 2 is out of range, there are 2"},
        Damage{"/pipelag/ranks", "", "pipelag.ranks: is missing"},
        Damage{"/pipelag/ranks", "0",
               "pipelag.ranks: 0 is out of range, it must be from 1 to 1048576"},
        Damage{"/pipelag/ranks", "3", "pipelag.ranks: 3 ranks cannot share 2 stages"},
        Damage{"/pipelag/ranks", "2000000000",
               "pipelag.ranks: 2000000000 is out of range, it must be from 1 to 1048576"},
        Damage{"/pipelag/schedule", "null", "pipelag.schedule: expected a text, not null"},
        Damage{"/pipelag/microbatches", "0",
               "pipelag.microbatches: 0 is out of range, it must be at least 1"},
        Damage{"/pipelag/stages", "3", "pipelag.stage_rank.2: is missing"},
        Damage{"/pipelag/stages", "1", "pipelag.stage_rank.1: is one too many, there are 1 stages"},
        Damage{"/pipelag/stage_rank/1", "2",
               "pipelag.stage_rank.1: 2 is out of range, it must be from 0 to 1"}));

TEST(ChromeErrors, OrderOfKeysAndEventsDoesNotMatter) {
  const Trace trace = sample::GPipe(2, 2, 2, 1000, 2000, 3);
  Json document = Json::parse(ToChrome(trace));  // nlohmann sorts keys: args before kind, ts last
  std::reverse(document["traceEvents"].begin(), document["traceEvents"].end());
  const std::string reversed = "{\"traceEvents\":" + document["traceEvents"].dump() +
                               ",\"pipelag\":" + document["pipelag"].dump(2) + "}";
  EXPECT_EQ(ParseChrome(reversed, "t.json"), trace);
}

}  // namespace
}  // namespace pipelag
