#include "traces/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "models/error.h"

namespace pipelag {
namespace {

/// The order of spans in a trace.
struct Before {
  int ranks;
  bool operator()(const Span& a, const Span& b) const {
    if (a.rank != b.rank) return a.rank < b.rank;
    const int64_t lane_a = LaneNumber(a, ranks);
    const int64_t lane_b = LaneNumber(b, ranks);
    return std::tie(lane_a, a.start, a.end) < std::tie(lane_b, b.start, b.end);
  }
};

}  // namespace

int64_t LaneNumber(const Span& span, int ranks) {
  constexpr int64_t kLanesPerPeer = 4;
  const auto of_peer = [&](int64_t lane) { return 1 + kLanesPerPeer * span.peer + lane; };
  switch (span.kind) {
    case ActionKind::kForward:
    case ActionKind::kBackward:
    case ActionKind::kBackwardInput:
    case ActionKind::kBackwardWeight:
    case ActionKind::kUpdate:
      return 0;
    case ActionKind::kSendForward:
      return of_peer(0);
    case ActionKind::kReceiveForward:
      return of_peer(1);
    case ActionKind::kSendBackward:
      return of_peer(2);
    case ActionKind::kReceiveBackward:
      return of_peer(3);
    case ActionKind::kAllReduce:
      return 1 + kLanesPerPeer * ranks;
  }
  CheckFailed(__FILE__, __LINE__, "the kind is one of the enumerators");
}

bool AreHalves(const Span& a, const Span& b) {
  return a.overlapped && b.overlapped && a.rank == b.rank && a.start == b.start && a.end == b.end &&
         ((IsForward(a.kind) && YieldsInputGradient(b.kind)) ||
          (YieldsInputGradient(a.kind) && IsForward(b.kind)));
}

int64_t StepOf(const Span& span, const Trace& trace) {
  if (!HasMicrobatch(span.kind)) return span.microbatch;
  CHECK(trace.microbatches > 0);
  return span.microbatch / trace.microbatches;
}

std::string SpanName(const Span& span) {
  return fmt::format("{}{}{}", span.stage, KindName(span.kind), span.microbatch);
}

std::string RankName(const Trace& trace, int rank) {
  if (trace.replicas == 1) return fmt::format("rank {}", rank);
  return fmt::format("rank {} (replica {})", rank, rank / (trace.ranks / trace.replicas));
}

void SortSpans(Trace& trace) {
  std::stable_sort(trace.spans.begin(), trace.spans.end(), Before{trace.ranks});
}

bool AreSorted(const Trace& trace) {
  return std::is_sorted(trace.spans.begin(), trace.spans.end(), Before{trace.ranks});
}

}  // namespace pipelag
