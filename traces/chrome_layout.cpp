#include "traces/chrome_layout.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include "models/error.h"
#include "traces/in_flight.h"

namespace pipelag::chrome {
namespace {

/// Hundredths of a nanosecond between neighbours.
constexpr int kApart = 5;

void AddSlices(const Part& part, std::vector<Event>& events) {
  const std::vector<Span>& spans = part.trace->spans;
  for (size_t i = 0; i < spans.size(); ++i) {
    Event event;
    event.moment = part.shown[i].start;
    event.span = static_cast<uint32_t>(i);
    event.rank = spans[i].rank;
    event.part = &part;
    events.push_back(event);
    if (i + 1 < spans.size() && AreHalves(spans[i], spans[i + 1])) ++i;
  }
}

/// Both halves of a lane run in one order: the k-th message sent is the k-th received.
void AddFlows(const Part& part, int64_t& next_id, std::vector<Event>& events) {
  using Lane = std::tuple<int, int, bool>;  // sender, receiver, forward
  std::map<Lane, std::vector<uint32_t>> sent;
  std::map<Lane, std::vector<uint32_t>> received;
  const std::vector<Span>& spans = part.trace->spans;
  for (uint32_t i = 0; i < spans.size(); ++i) {
    const Span& span = spans[i];
    const bool forward =
        span.kind == ActionKind::kSendForward || span.kind == ActionKind::kReceiveForward;
    if (IsSend(span.kind)) sent[{span.rank, span.peer, forward}].push_back(i);
    if (IsReceive(span.kind)) received[{span.peer, span.rank, forward}].push_back(i);
  }
  Event event;
  event.part = &part;
  for (const auto& [lane, from] : sent) {
    const std::vector<uint32_t>& to = received[lane];
    for (size_t k = 0; k < std::min(from.size(), to.size()); ++k) {
      const Moment start = part.shown[from[k]].start;
      const Moment end = std::max(start, part.shown[to[k]].start);
      // An arrow must begin and end inside slices, or viewers tie it to some other one.
      if (start >= part.shown[from[k]].end || end >= part.shown[to[k]].end) continue;
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
  const auto in_flight = ActivationsInFlight(*part.trace);
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
  for (size_t i = 0; i < part.trace->spans.size(); ++i) {
    const Span& span = part.trace->spans[i];
    if (span.kind != ActionKind::kUpdate || span.weight_version < 0) continue;
    event.rank = span.rank;
    event.span = static_cast<uint32_t>(i);
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

void AddPath(const Part& part, std::vector<Event>& events) {
  Event event;
  event.part = &part;
  event.what = Event::What::kPath;
  event.rank = part.trace->ranks;
  for (size_t i = 0; i < part.path.size(); ++i) {
    event.moment = {part.path[i].start};
    event.span = static_cast<uint32_t>(i);
    events.push_back(event);
  }
}

void AddMemory(const Part& part, std::vector<Event>& events) {
  if (part.memory == nullptr) return;
  CHECK(part.memory->size() == static_cast<size_t>(part.trace->ranks));
  Event event;
  event.part = &part;
  event.what = Event::What::kMemory;
  for (size_t rank = 0; rank < part.memory->size(); ++rank) {
    event.rank = static_cast<int>(rank);
    for (const HeldBytes& held : (*part.memory)[rank].curve) {
      event.moment = {held.time};
      event.value = held.bytes;
      events.push_back(event);
    }
  }
}

}  // namespace

Moment ShownEnd(const std::vector<PathPiece>& path, size_t piece) {
  const bool touches = piece + 1 < path.size();
  return {path[piece].end, touches ? -kApart : 0};
}

bool SameLane(const Trace& trace, const Span& a, const Span& b) {
  return a.rank == b.rank && LaneNumber(a, trace.ranks) == LaneNumber(b, trace.ranks);
}

std::vector<Shown> Show(const Trace& trace) {
  constexpr int kShort = 3;
  constexpr int kMost = 40;
  const std::vector<Span>& spans = trace.spans;
  std::vector<Shown> shown(spans.size());
  for (size_t i = 0; i < spans.size(); ++i) {
    const size_t last = i + 1 < spans.size() && AreHalves(spans[i], spans[i + 1]) ? i + 1 : i;
    Moment start{spans[i].start};
    if (i > 0 && SameLane(trace, spans[i - 1], spans[i]) && spans[i - 1].start == start.time) {
      start.hundredths = std::min(shown[i - 1].start.hundredths + kApart, kMost);
    }
    Moment end = std::max(start, Moment{spans[i].end});
    if (last + 1 < spans.size() && SameLane(trace, spans[i], spans[last + 1])) {
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

std::vector<Event> Events(const std::vector<Part>& parts, bool flows) {
  std::vector<Event> events;
  int64_t next_flow = 1;
  for (const Part& part : parts) {
    CHECK(part.trace->spans.size() <= std::numeric_limits<uint32_t>::max());
    AddSlices(part, events);
    if (flows) AddFlows(part, next_flow, events);
    AddInFlight(part, events);
    AddVersions(part, events);
    AddPath(part, events);
    AddMemory(part, events);
  }
  std::stable_sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return std::tie(a.moment, a.what) < std::tie(b.moment, b.what);
  });
  return events;
}

}  // namespace pipelag::chrome
