// Writes Chrome trace JSON. Text goes straight into a buffer: a document tree of a long run would
// cost many times the run itself.
#include "traces/chrome.h"

#include <fmt/format.h>

#include <concepts>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>

#include "models/error.h"
#include "traces/chrome_layout.h"

namespace pipelag {
namespace {

using chrome::Event;
using chrome::Moment;
using chrome::Part;

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

int64_t PidOf(const Part& part, int rank) { return part.first_pid + rank; }

int64_t TidOf(const Part& part, const Span& span) {
  return PidOf(part, span.rank) + LaneNumber(span, part.trace->ranks);
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
  const std::vector<Span>& spans = event.part->trace->spans;
  const Span& span = spans[event.span];
  const Span* second = event.span + 1 < spans.size() ? &spans[event.span + 1] : nullptr;
  if (second != nullptr && !AreHalves(span, *second)) second = nullptr;
  const Moment end = event.part->shown[event.span].end;
  Put(text, R"(,"ph":"X","dur":)");
  PutMicroseconds(text, Hundredths(end) - Hundredths(event.moment));
  Put(text, R"(,"tid":)", TidOf(*event.part, span), R"(,"name":")", SpanName(span));
  if (second != nullptr) Put(text, "+", SpanName(*second));
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
  if (end.time != span.end) Put(text, R"(,"end_ns":)", span.end.count());
  Put(text, "}");
}

void PutPathPiece(std::string& text, const Event& event) {
  const PathPiece& piece = event.part->path[event.span];
  const Moment end = chrome::ShownEnd(event.part->path, event.span);
  const bool hop = piece.rank != piece.from_rank;
  Put(text, R"(,"ph":"X","dur":)");
  PutMicroseconds(text, Hundredths(end) - Hundredths(event.moment));
  Put(text, R"(,"tid":)", PidOf(*event.part, event.rank), R"(,"name":")");
  const bool action = piece.work == PathWork::kCompute || piece.work == PathWork::kUpdate ||
                      piece.work == PathWork::kReduction;
  if (!action) Put(text, PathWorkName(piece.work), " before ");
  Put(text, piece.name, R"(","cat":")", chrome::kPathCategory, R"(","args":{"rank":)", piece.rank);
  if (hop) Put(text, R"(,"from_rank":)", piece.from_rank);
  Put(text, R"(,"work":")", PathWorkName(piece.work), R"("})");
}

void PutEvent(std::string& text, const Event& event) {
  const Part& part = *event.part;
  const auto tid = [&] { return TidOf(part, part.trace->spans[event.span]); };
  Put(text, ",\n", R"({"ts":)");
  PutMicroseconds(text, Hundredths(event.moment));
  Put(text, R"(,"pid":)", PidOf(part, event.rank));
  switch (event.what) {
    case Event::What::kSlice:
      PutSlice(text, event);
      break;
    case Event::What::kPath:
      PutPathPiece(text, event);
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
      Put(text, R"(,"ph":"C","name":"weight version of stage )",
          part.trace->spans[event.span].stage, R"(","args":{"version":)", event.value, "}");
      break;
    case Event::What::kMemory:
      Put(text, R"(,"ph":"C","name":"memory","args":{"bytes":)", event.value, "}");
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
  for (int rank = 0; rank < part.trace->ranks; ++rank) {
    const int64_t pid = PidOf(part, rank);
    PutName(text, "process", pid, pid, part.prefix + RankName(*part.trace, rank), pid);
  }
  if (!part.path.empty()) {
    const int64_t pid = PidOf(part, part.trace->ranks);
    PutName(text, "process", pid, pid, part.prefix + "critical path", pid);
    PutName(text, "thread", pid, pid, "critical path", 0);
  }
  const Span* last = nullptr;
  for (const Span& span : part.trace->spans) {
    if (last == nullptr || !chrome::SameLane(*part.trace, *last, span)) {
      PutName(text, "thread", PidOf(part, span.rank), TidOf(part, span), LaneName(span),
              LaneNumber(span, part.trace->ranks));
    }
    last = &span;
  }
}

/// The run as a whole.
std::string HeadOf(const Trace& trace) {
  return fmt::format(
      "\"schedule\":{},\"ranks\":{},\"stages\":{},\"microbatches\":{},\"steps\":{},"
      "\"stage_rank\":[{}],\"tokens_per_step\":{}{}",
      Quoted(trace.schedule), trace.ranks, trace.stages, trace.microbatches, trace.steps,
      fmt::join(trace.stage_rank, ","), trace.tokens_per_step,
      trace.replicas > 1 ? fmt::format(",\"replicas\":{}", trace.replicas) : "");
}

std::string ToText(const std::string& head, const std::vector<Part>& parts,
                   const ChromeOptions& options) {
  constexpr size_t kUsualLine = 180;
  const std::vector<Event> events = chrome::Events(parts, options.flows);
  std::string text;
  text.reserve(kUsualLine * events.size());
  Put(text, R"({"displayTimeUnit":"ms",)", "\n", R"("pipelag":)", head, ",\n",
      R"("traceEvents":[)");
  for (const Part& part : parts) PutNames(text, part);
  for (const Event& event : events) PutEvent(text, event);
  Put(text, "\n]}\n");
  return text;
}

/// A trace that is sorted already, as most are, is not copied: a long one is many megabytes.
std::shared_ptr<const Trace> Sorted(const Trace& trace) {
  if (AreSorted(trace)) return {std::shared_ptr<const Trace>(), &trace};
  auto copy = std::make_shared<Trace>(trace);
  SortSpans(*copy);
  return copy;
}

Part PartOf(const Trace& trace, int64_t first_pid, std::string prefix,
            const ChromeOptions& options) {
  CHECK(trace.ranks > 0);
  for (const Span& span : trace.spans) {
    CHECK(span.rank >= 0 && span.rank < trace.ranks && span.end >= span.start);
    const bool transfer = IsSend(span.kind) || IsReceive(span.kind);
    CHECK(!transfer || (span.peer >= 0 && span.peer < trace.ranks));
  }
  Part part;
  part.trace = Sorted(trace);
  part.first_pid = first_pid;
  part.prefix = std::move(prefix);
  part.shown = chrome::Show(*part.trace);
  if (options.critical_path) part.path = FindCriticalPath(*part.trace).pieces;
  return part;
}

}  // namespace

std::string ToChrome(const Trace& trace, const ChromeOptions& options) {
  std::vector<Part> parts = {PartOf(trace, 0, "", options)};
  parts[0].memory = options.memory;
  return ToText(fmt::format("{{{}}}", HeadOf(trace)), parts, options);
}

std::string ToChrome(const std::vector<std::pair<std::string, const Trace*>>& labelled,
                     const ChromeOptions& options) {
  CHECK(!labelled.empty());
  std::vector<Part> parts;
  std::string heads;
  int64_t first_pid = 0;
  for (const auto& [label, trace] : labelled) {
    parts.push_back(PartOf(*trace, first_pid, label + " ", options));
    heads += fmt::format("{}{{\"label\":{},{}}}", heads.empty() ? "" : ",", Quoted(label),
                         HeadOf(*trace));
    first_pid += trace->ranks + (options.critical_path ? 1 : 0);
  }
  return ToText(fmt::format("[{}]", heads), parts, options);
}

}  // namespace pipelag
