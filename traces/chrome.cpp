// Writes Chrome trace JSON. Text goes straight into a buffer: a document tree of a long run would
// cost many times the run itself.
#include "traces/chrome.h"

#include <fmt/format.h>

#include <algorithm>
#include <compare>
#include <concepts>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <tuple>

#include "models/error.h"
#include "traces/in_flight.h"

namespace pipelag {
namespace {

__extension__ using Wide = __int128;

void PutOne(std::string& text, std::string_view part) { text += part; }
void PutOne(std::string& text, std::integral auto number) {
  const fmt::format_int digits(number);
  text.append(digits.data(), digits.size());
}
void Put(std::string& text, const auto&... parts) { (PutOne(text, parts), ...); }

std::string Quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// A time as written: hundredths of a nanosecond beside it keep neighbours apart, see Shown.
struct Moment {
  Nanoseconds time{0};
  int hundredths = 0;  ///< within ±49, so that rounding to nanoseconds takes them away again
  auto operator<=>(const Moment&) const = default;
};

Wide Hundredths(const Moment& moment) {
  return Wide{moment.time.count()} * 100 + moment.hundredths;
}

/// Of a nanosecond's hundredths, as microseconds with no more digits than needed.
void PutMicroseconds(std::string& text, Wide hundredths) {
  if (hundredths < 0) Put(text, "-");
  constexpr int64_t kPerMicrosecond = 100'000;
  const Wide size = hundredths < 0 ? -hundredths : hundredths;
  Put(text, static_cast<int64_t>(size / kPerMicrosecond));
  auto rest = static_cast<int64_t>(size % kPerMicrosecond);
  if (rest == 0) return;
  char digits[] = ".00000";
  for (int i = 5; i > 0; --i, rest /= 10) digits[i] = static_cast<char>('0' + rest % 10);
  const std::string_view fraction(digits, 6);
  Put(text, fraction.substr(0, fraction.find_last_not_of('0') + 1));
}

/// One trace of the file.
struct Part {
  Trace trace;  ///< sorted
  int64_t first_pid = 0;
  std::string prefix;  ///< of the process names
};

/// A span's slice. Viewers compute in doubles: where a slice ends at the very start of the next,
/// their ts + dur may come out behind it, and one of the two is drawn wrongly or lost. So such a
/// slice ends a hair early; of several that start at one instant, each starts a hair after the one
/// before.
struct Shown {
  Moment start;
  Moment end;
};

/// One line of traceEvents, before its place among the others is known.
struct Event {
  // At one instant slices come first: a flow binds to a slice that has begun.
  enum class What : uint8_t { kSlice, kFlowStart, kFlowEnd, kInFlight, kVersion };

  Moment moment;
  What what = What::kSlice;
  size_t span = 0;    ///< slices, flows, versions: index into the part's spans
  Moment end;         ///< slices
  int64_t value = 0;  ///< counters; flows: id
  int rank = 0;
  const Part* part = nullptr;
};

int64_t PidOf(const Part& part, int rank) { return part.first_pid + rank; }

int64_t TidOf(const Part& part, const Span& span) {
  return PidOf(part, span.rank) + LaneNumber(span, part.trace.ranks);
}

bool SameLane(const Part& part, const Span& a, const Span& b) {
  return a.rank == b.rank && LaneNumber(a, part.trace.ranks) == LaneNumber(b, part.trace.ranks);
}

/// Of each span, so that no two slices of a lane overlap.
std::vector<Shown> Show(const Part& part) {
  constexpr int kApart = 5;
  constexpr int kShort = 3;
  constexpr int kMost = 40;
  const std::vector<Span>& spans = part.trace.spans;
  std::vector<Shown> shown(spans.size());
  for (size_t i = 0; i < spans.size(); ++i) {
    const size_t last = i + 1 < spans.size() && AreHalves(spans[i], spans[i + 1]) ? i + 1 : i;
    Moment start{spans[i].start};
    if (i > 0 && SameLane(part, spans[i - 1], spans[i]) && spans[i - 1].start == start.time) {
      start.hundredths = std::min(shown[i - 1].start.hundredths + kApart, kMost);
    }
    Moment end = std::max(start, Moment{spans[i].end});
    if (last + 1 < spans.size() && SameLane(part, spans[i], spans[last + 1])) {
      const Nanoseconds next = spans[last + 1].start;
      if (next == start.time) {
        end = {next, start.hundredths + (start.hundredths < kMost ? kShort : 0)};
      } else if (next <= end.time) {
        end = {next, -kApart};
      }
    }
    shown[i] = shown[last] = {start, end};
    i = last;
  }
  return shown;
}

void AddSlices(const Part& part, const std::vector<Shown>& shown, std::vector<Event>& events) {
  const std::vector<Span>& spans = part.trace.spans;
  for (size_t i = 0; i < spans.size(); ++i) {
    Event event;
    event.moment = shown[i].start;
    event.end = shown[i].end;
    event.span = i;
    event.rank = spans[i].rank;
    event.part = &part;
    events.push_back(event);
    if (i + 1 < spans.size() && AreHalves(spans[i], spans[i + 1])) ++i;
  }
}

/// Both halves of a lane run in one order: the k-th message sent is the k-th received.
void AddFlows(const Part& part, const std::vector<Shown>& shown, int64_t& next_id,
              std::vector<Event>& events) {
  using Lane = std::tuple<int, int, bool>;  // sender, receiver, forward
  std::map<Lane, std::vector<size_t>> sent;
  std::map<Lane, std::vector<size_t>> received;
  const std::vector<Span>& spans = part.trace.spans;
  for (size_t i = 0; i < spans.size(); ++i) {
    const Span& span = spans[i];
    const bool forward =
        span.kind == ActionKind::kSendForward || span.kind == ActionKind::kReceiveForward;
    if (IsSend(span.kind)) sent[{span.rank, span.peer, forward}].push_back(i);
    if (IsReceive(span.kind)) received[{span.peer, span.rank, forward}].push_back(i);
  }
  Event event;
  event.part = &part;
  for (const auto& [lane, from] : sent) {
    const std::vector<size_t>& to = received[lane];
    for (size_t k = 0; k < std::min(from.size(), to.size()); ++k) {
      const Moment start = shown[from[k]].start;
      const Moment end = std::max(start, shown[to[k]].start);
      // An arrow must begin and end inside slices, or viewers tie it to some other one.
      if (start >= shown[from[k]].end || end >= shown[to[k]].end) continue;
      event.value = next_id++;
      event.what = Event::What::kFlowStart;
      event.moment = start;
      event.span = from[k];
      event.rank = spans[event.span].rank;
      events.push_back(event);
      event.what = Event::What::kFlowEnd;
      event.moment = end;
      event.span = to[k];
      event.rank = spans[event.span].rank;
      events.push_back(event);
    }
  }
}

void AddInFlight(const Part& part, std::vector<Event>& events) {
  Event event;
  event.part = &part;
  event.what = Event::What::kInFlight;
  const auto in_flight = ActivationsInFlight(part.trace);
  for (size_t rank = 0; rank < in_flight.size(); ++rank) {
    event.rank = static_cast<int>(rank);
    for (const HeldActivations& held : in_flight[rank]) {
      event.moment = {held.time};
      event.value = held.held;
      events.push_back(event);
    }
  }
}

void AddVersions(const Part& part, std::vector<Event>& events) {
  Event event;
  event.part = &part;
  event.what = Event::What::kVersion;
  std::set<std::pair<int, int>> begun;  // rank, stage
  for (size_t i = 0; i < part.trace.spans.size(); ++i) {
    const Span& span = part.trace.spans[i];
    if (span.kind != ActionKind::kUpdate || span.weight_version < 0) continue;
    event.rank = span.rank;
    event.span = i;
    if (begun.insert({span.rank, span.stage}).second && span.end.count() > 0) {
      event.moment = {};
      event.value = span.weight_version - 1;
      events.push_back(event);
    }
    event.moment = {span.end};
    event.value = span.weight_version;
    events.push_back(event);
  }
}

/// What of a span is not in the event's ts, dur and pid.
void PutFields(std::string& text, const Span& span) {
  Put(text, R"("kind":")", KindName(span.kind), R"(","stage":)", span.stage,
      HasMicrobatch(span.kind) ? R"(,"microbatch":)" : R"(,"step":)", span.microbatch);
  if (span.peer != -1) Put(text, R"(,"peer":)", span.peer);
  if (span.wait.count() != 0) Put(text, R"(,"wait_ns":)", span.wait.count());
  if (span.weight_version != -1) Put(text, R"(,"weight_version":)", span.weight_version);
  if (span.bytes != 0) Put(text, R"(,"bytes":)", span.bytes);
}

void PutSlice(std::string& text, const Event& event) {
  const std::vector<Span>& spans = event.part->trace.spans;
  const Span& span = spans[event.span];
  const Span* second = event.span + 1 < spans.size() ? &spans[event.span + 1] : nullptr;
  if (second != nullptr && !AreHalves(span, *second)) second = nullptr;
  Put(text, R"(,"ph":"X","dur":)");
  PutMicroseconds(text, Hundredths(event.end) - Hundredths(event.moment));
  Put(text, R"(,"tid":)", TidOf(*event.part, span), R"(,"name":")", span.stage, KindName(span.kind),
      span.microbatch);
  if (second != nullptr) {
    Put(text, "+", second->stage, KindName(second->kind), second->microbatch);
  }
  Put(text, R"(","cat":")", KindName(span.kind), R"(","args":{)");
  if (second != nullptr) {
    Put(text, R"("first":{)");
    PutFields(text, span);
    Put(text, R"(},"second":{)");
    PutFields(text, *second);
    Put(text, "}");
  } else {
    PutFields(text, span);
    if (span.overlapped) Put(text, R"(,"overlapped":true)");
  }
  if (event.end.time != span.end) Put(text, R"(,"end_ns":)", span.end.count());
  Put(text, "}");
}

void PutEvent(std::string& text, const Event& event) {
  const Part& part = *event.part;
  const auto tid = [&] { return TidOf(part, part.trace.spans[event.span]); };
  Put(text, ",\n", R"({"ts":)");
  PutMicroseconds(text, Hundredths(event.moment));
  Put(text, R"(,"pid":)", PidOf(part, event.rank));
  switch (event.what) {
    case Event::What::kSlice:
      PutSlice(text, event);
      break;
    case Event::What::kFlowStart:
      Put(text, R"(,"ph":"s","tid":)", tid(), R"(,"id":)", event.value,
          R"(,"name":"message","cat":"message")");
      break;
    case Event::What::kFlowEnd:
      Put(text, R"(,"ph":"f","bp":"e","tid":)", tid(), R"(,"id":)", event.value,
          R"(,"name":"message","cat":"message")");
      break;
    case Event::What::kInFlight:
      Put(text, R"(,"ph":"C","name":"activations in flight","args":{"activations":)", event.value,
          "}");
      break;
    case Event::What::kVersion:
      Put(text, R"(,"ph":"C","name":"weight version of stage )", part.trace.spans[event.span].stage,
          R"(","args":{"version":)", event.value, "}");
      break;
  }
  Put(text, "}");
}

std::string LaneName(const Span& span) {
  switch (span.kind) {
    case ActionKind::kForward:
    case ActionKind::kBackward:
    case ActionKind::kBackwardInput:
    case ActionKind::kBackwardWeight:
    case ActionKind::kUpdate:
      return "compute";
    case ActionKind::kAllReduce:
      return "reduce";
    case ActionKind::kSendForward:
      return fmt::format("send F to rank {}", span.peer);
    case ActionKind::kReceiveForward:
      return fmt::format("receive F from rank {}", span.peer);
    case ActionKind::kSendBackward:
      return fmt::format("send B to rank {}", span.peer);
    case ActionKind::kReceiveBackward:
      return fmt::format("receive B from rank {}", span.peer);
  }
  CheckFailed(__FILE__, __LINE__, "the kind is one of the enumerators");
}

/// A name and a sort index, of a process or a thread, as metadata events.
void PutName(std::string& text, std::string_view what, int64_t pid, int64_t tid,
             const std::string& name, int64_t sort_index) {
  const auto begin = [&](std::string_view record) {
    // The first event of the file has no comma before it.
    Put(text, text.back() == '[' ? "\n" : ",\n", R"({"ts":0,"ph":"M","pid":)", pid, R"(,"tid":)",
        tid, R"(,"name":")", what, record, R"(","args":)");
  };
  begin("_name");
  Put(text, R"({"name":)", Quoted(name), "}}");
  begin("_sort_index");
  Put(text, R"({"sort_index":)", sort_index, "}}");
}

void PutNames(std::string& text, const Part& part) {
  for (int rank = 0; rank < part.trace.ranks; ++rank) {
    const int64_t pid = PidOf(part, rank);
    PutName(text, "process", pid, pid, fmt::format("{}rank {}", part.prefix, rank), pid);
  }
  const Span* last = nullptr;
  for (const Span& span : part.trace.spans) {
    if (last == nullptr || !SameLane(part, *last, span)) {
      PutName(text, "thread", PidOf(part, span.rank), TidOf(part, span), LaneName(span),
              LaneNumber(span, part.trace.ranks));
    }
    last = &span;
  }
}

/// The run as a whole.
std::string HeadOf(const Trace& trace) {
  return fmt::format(
      "\"schedule\":{},\"ranks\":{},\"stages\":{},\"microbatches\":{},\"steps\":{},"
      "\"stage_rank\":[{}],\"tokens_per_step\":{}",
      Quoted(trace.schedule), trace.ranks, trace.stages, trace.microbatches, trace.steps,
      fmt::join(trace.stage_rank, ","), trace.tokens_per_step);
}

std::string ToText(const std::string& head, const std::vector<Part>& parts,
                   const ChromeOptions& options) {
  std::vector<Event> events;
  int64_t next_flow = 1;
  for (const Part& part : parts) {
    const std::vector<Shown> shown = Show(part);
    AddSlices(part, shown, events);
    if (options.flows) AddFlows(part, shown, next_flow, events);
    AddInFlight(part, events);
    AddVersions(part, events);
  }
  std::stable_sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return std::tie(a.moment, a.what) < std::tie(b.moment, b.what);
  });
  std::string text;
  Put(text, R"({"displayTimeUnit":"ms",)", "\n", R"("pipelag":)", head, ",\n",
      R"("traceEvents":[)");
  for (const Part& part : parts) PutNames(text, part);
  for (const Event& event : events) PutEvent(text, event);
  Put(text, "\n]}\n");
  return text;
}

Part PartOf(const Trace& trace, int64_t first_pid, std::string prefix) {
  CHECK(trace.ranks > 0);
  for (const Span& span : trace.spans) {
    CHECK(span.rank >= 0 && span.rank < trace.ranks && span.end >= span.start);
    CHECK(OnComputeLane(span.kind) || span.kind == ActionKind::kAllReduce ||
          (span.peer >= 0 && span.peer < trace.ranks));
  }
  Part part{trace, first_pid, std::move(prefix)};
  SortSpans(part.trace);
  return part;
}

}  // namespace

std::string ToChrome(const Trace& trace, const ChromeOptions& options) {
  std::vector<Part> parts;
  parts.push_back(PartOf(trace, 0, ""));
  return ToText(fmt::format("{{{}}}", HeadOf(trace)), parts, options);
}

std::string ToChrome(const std::vector<std::pair<std::string, const Trace*>>& labelled,
                     const ChromeOptions& options) {
  CHECK(!labelled.empty());
  std::vector<Part> parts;
  std::string heads;
  int64_t first_pid = 0;
  for (const auto& [label, trace] : labelled) {
    parts.push_back(PartOf(*trace, first_pid, label + " "));
    heads += fmt::format("{}{{\"label\":{},{}}}", heads.empty() ? "" : ",", Quoted(label),
                         HeadOf(*trace));
    first_pid += trace->ranks;
  }
  return ToText(fmt::format("[{}]", heads), parts, options);
}

}  // namespace pipelag
