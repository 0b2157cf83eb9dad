// Writes Chrome trace JSON. Text goes straight into a buffer: a document tree of a long run would
// cost many times the run itself.
#include "traces/chrome.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <tuple>

#include "models/error.h"
#include "traces/in_flight.h"

namespace pipelag {
namespace {

using Text = fmt::memory_buffer;

template <typename... Args>
void Put(Text& text, fmt::format_string<Args...> format, Args&&... args) {
  fmt::format_to(std::back_inserter(text), format, std::forward<Args>(args)...);
}

std::string Quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void PutMicroseconds(Text& text, Nanoseconds time) {
  const int64_t ns = time.count();
  const uint64_t size = ns < 0 ? 0 - static_cast<uint64_t>(ns) : static_cast<uint64_t>(ns);
  Put(text, "{}{}", ns < 0 ? "-" : "", size / 1000);
  if (size % 1000 != 0) Put(text, ".{:03}", size % 1000);
}

/// One trace of the file.
struct Part {
  Trace trace;  ///< sorted
  int64_t first_pid = 0;
  std::string prefix;  ///< of the process names
};

/// One line of traceEvents, before its place among the others is known.
struct Event {
  // At one instant slices come first: a flow binds to a slice that has begun.
  enum class What : uint8_t { kSlice, kFlowStart, kFlowEnd, kInFlight, kVersion };

  Nanoseconds time{0};
  What what = What::kSlice;
  size_t span = 0;       ///< slices, flows: index into the part's spans
  Nanoseconds shown{0};  ///< slices: the end as shown
  int64_t value = 0;     ///< counters; flows: id
  int id = 0;            ///< counters: rank or stage
  const Part* part = nullptr;
};

int64_t PidOf(const Part& part, int rank) { return part.first_pid + rank; }

int64_t TidOf(const Part& part, const Span& span) {
  return PidOf(part, span.rank) + LaneNumber(span, part.trace.ranks);
}

bool SameLane(const Part& part, const Span& a, const Span& b) {
  return a.rank == b.rank && LaneNumber(a, part.trace.ranks) == LaneNumber(b, part.trace.ranks);
}

/// Where each span's slice ends so that no two of a lane overlap.
std::vector<Nanoseconds> ShownEnds(const Part& part) {
  const std::vector<Span>& spans = part.trace.spans;
  std::vector<Nanoseconds> shown(spans.size());
  for (size_t i = 0; i < spans.size(); ++i) {
    const size_t last = i + 1 < spans.size() && AreHalves(spans[i], spans[i + 1]) ? i + 1 : i;
    shown[i] = spans[i].end;
    if (last + 1 < spans.size() && SameLane(part, spans[i], spans[last + 1])) {
      shown[i] = std::min(shown[i], spans[last + 1].start);
    }
    if (last != i) shown[last] = shown[i];
    i = last;
  }
  return shown;
}

void AddSlices(const Part& part, const std::vector<Nanoseconds>& shown,
               std::vector<Event>& events) {
  const std::vector<Span>& spans = part.trace.spans;
  for (size_t i = 0; i < spans.size(); ++i) {
    Event event;
    event.time = spans[i].start;
    event.span = i;
    event.shown = shown[i];
    event.part = &part;
    events.push_back(event);
    if (i + 1 < spans.size() && AreHalves(spans[i], spans[i + 1])) ++i;
  }
}

/// Both halves of a lane run in one order: the k-th message sent is the k-th received.
void AddFlows(const Part& part, const std::vector<Nanoseconds>& shown, int64_t& next_id,
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
  for (const auto& [lane, from] : sent) {
    const std::vector<size_t>& to = received[lane];
    for (size_t k = 0; k < std::min(from.size(), to.size()); ++k) {
      const Nanoseconds start = spans[from[k]].start;
      const Nanoseconds end = std::max(start, spans[to[k]].start);
      // An arrow must begin and end inside slices, or viewers tie it to some other one.
      if (start >= shown[from[k]] || end >= shown[to[k]]) continue;
      Event event;
      event.part = &part;
      event.value = next_id++;
      event.what = Event::What::kFlowStart;
      event.time = start;
      event.span = from[k];
      events.push_back(event);
      event.what = Event::What::kFlowEnd;
      event.time = end;
      event.span = to[k];
      events.push_back(event);
    }
  }
}

void AddCounters(const Part& part, std::vector<Event>& events) {
  Event event;
  event.part = &part;
  event.what = Event::What::kInFlight;
  const auto in_flight = ActivationsInFlight(part.trace);
  for (size_t rank = 0; rank < in_flight.size(); ++rank) {
    event.id = static_cast<int>(rank);
    for (const HeldActivations& held : in_flight[rank]) {
      event.time = held.time;
      event.value = held.held;
      events.push_back(event);
    }
  }
  event.what = Event::What::kVersion;
  std::set<int> begun;
  for (size_t i = 0; i < part.trace.spans.size(); ++i) {
    const Span& span = part.trace.spans[i];
    if (span.kind != ActionKind::kUpdate || span.weight_version < 0) continue;
    event.id = span.stage;
    event.span = i;
    if (begun.insert(span.stage).second) {
      event.time = Nanoseconds{0};
      event.value = span.weight_version - 1;
      if (span.end > event.time) events.push_back(event);
    }
    event.time = span.end;
    event.value = span.weight_version;
    events.push_back(event);
  }
}

/// What of a span is not in the event's ts, dur and pid.
void PutFields(Text& text, const Span& span) {
  Put(text, "\"kind\":\"{}\",\"stage\":{},\"{}\":{}", KindName(span.kind), span.stage,
      HasMicrobatch(span.kind) ? "microbatch" : "step", span.microbatch);
  if (span.peer != -1) Put(text, ",\"peer\":{}", span.peer);
  if (span.wait.count() != 0) Put(text, ",\"wait_ns\":{}", span.wait.count());
  if (span.weight_version != -1) Put(text, ",\"weight_version\":{}", span.weight_version);
  if (span.bytes != 0) Put(text, ",\"bytes\":{}", span.bytes);
}

void PutSlice(Text& text, const Event& event) {
  const std::vector<Span>& spans = event.part->trace.spans;
  const Span& span = spans[event.span];
  const Span* second = event.span + 1 < spans.size() ? &spans[event.span + 1] : nullptr;
  if (second != nullptr && !AreHalves(span, *second)) second = nullptr;
  Put(text, ",\"ph\":\"X\",\"dur\":");
  PutMicroseconds(text, event.shown - span.start);
  Put(text, ",\"tid\":{},\"name\":\"{}", TidOf(*event.part, span), SpanName(span));
  if (second != nullptr) Put(text, "+{}", SpanName(*second));
  Put(text, "\",\"cat\":\"{}\",\"args\":{{", KindName(span.kind));
  if (second != nullptr) {
    Put(text, "\"first\":{{");
    PutFields(text, span);
    Put(text, "}},\"second\":{{");
    PutFields(text, *second);
    Put(text, "}}");
  } else {
    PutFields(text, span);
    if (span.overlapped) Put(text, ",\"overlapped\":true");
  }
  if (event.shown != span.end) Put(text, ",\"end_ns\":{}", span.end.count());
  Put(text, "}}");
}

void PutEvent(Text& text, const Event& event) {
  const Part& part = *event.part;
  const bool of_rank = event.what == Event::What::kInFlight;
  const Span* span = of_rank ? nullptr : &part.trace.spans[event.span];
  Put(text, ",\n{{\"ts\":");
  PutMicroseconds(text, event.time);
  Put(text, ",\"pid\":{}", PidOf(part, of_rank ? event.id : span->rank));
  switch (event.what) {
    case Event::What::kSlice:
      PutSlice(text, event);
      break;
    case Event::What::kFlowStart:
      Put(text, ",\"ph\":\"s\",\"tid\":{},\"id\":{},\"name\":\"message\",\"cat\":\"message\"",
          TidOf(part, *span), event.value);
      break;
    case Event::What::kFlowEnd:
      Put(text,
          ",\"ph\":\"f\",\"bp\":\"e\",\"tid\":{},\"id\":{},\"name\":\"message\","
          "\"cat\":\"message\"",
          TidOf(part, *span), event.value);
      break;
    case Event::What::kInFlight:
      Put(text, ",\"ph\":\"C\",\"name\":\"activations in flight\",\"args\":{{\"activations\":{}}}",
          event.value);
      break;
    case Event::What::kVersion:
      Put(text, ",\"ph\":\"C\",\"name\":\"weight version of stage {}\",\"args\":{{\"version\":{}}}",
          event.id, event.value);
      break;
  }
  Put(text, "}}");
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
void PutName(Text& text, std::string_view what, int64_t pid, int64_t tid, const std::string& name,
             int64_t sort_index) {
  const auto begin = [&](std::string_view record) {
    // The first event of the file has no comma before it.
    const bool first = text[text.size() - 1] == '[';
    Put(text, "{}\n{{\"ts\":0,\"ph\":\"M\",\"pid\":{},\"tid\":{},\"name\":\"{}_{}\",\"args\":",
        first ? "" : ",", pid, tid, what, record);
  };
  begin("name");
  Put(text, "{{\"name\":{}}}}}", Quoted(name));
  begin("sort_index");
  Put(text, "{{\"sort_index\":{}}}}}", sort_index);
}

void PutNames(Text& text, const Part& part) {
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
    const std::vector<Nanoseconds> shown = ShownEnds(part);
    AddSlices(part, shown, events);
    if (options.flows) AddFlows(part, shown, next_flow, events);
    AddCounters(part, events);
  }
  std::stable_sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return std::tie(a.time, a.what) < std::tie(b.time, b.what);
  });
  Text text;
  Put(text, "{{\"displayTimeUnit\":\"ms\",\n\"pipelag\":{},\n\"traceEvents\":[", head);
  for (const Part& part : parts) PutNames(text, part);
  for (const Event& event : events) PutEvent(text, event);
  Put(text, "\n]}}\n");
  return fmt::to_string(text);
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
