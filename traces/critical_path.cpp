// Walks from the end of a run back along causes.
#include "traces/critical_path.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/error.h"
#include "traces/causes.h"

namespace pipelag {
namespace {

PathWork WorkOf(const Span& span) {
  if (span.kind == ActionKind::kUpdate) return PathWork::kUpdate;
  if (span.kind == ActionKind::kAllReduce) return PathWork::kReduction;
  return PathWork::kCompute;
}

class Walk {
 public:
  explicit Walk(const Trace& trace) : trace_(trace), causes_(FindCauses(trace)) {
    path_.by_work.resize(kPathWorks);
    path_.by_rank.resize(static_cast<size_t>(trace.ranks));
  }

  CriticalPath Back() {
    for (int at = causes_.last; at >= 0; at = At(at).cause) Add(At(at));
    std::reverse(path_.pieces.begin(), path_.pieces.end());
    return std::move(path_);
  }

 private:
  const CausedAction& At(int action) const { return causes_.actions[static_cast<size_t>(action)]; }

  /// The action, then what lies between it and its cause: from the end to the start.
  void Add(const CausedAction& action) {
    const Span& span = trace_.spans[action.span];
    PathPiece piece;
    piece.work = WorkOf(span);
    piece.rank = piece.from_rank = action.rank;
    piece.name = SpanName(span);
    if (action.pair) {
      piece.name = fmt::format("{}+{}", piece.name, SpanName(trace_.spans[action.span + 1]));
    }
    const Nanoseconds ready = action.cause < 0 ? causes_.start : At(action.cause).end;
    if (piece.work == PathWork::kReduction) {
      Put(piece, ready, action.end);
      return;
    }
    Put(piece, action.start, action.end);
    if (action.cause < 0) {
      piece.work = PathWork::kOverhead;
      Put(piece, ready, action.start);
      return;
    }
    piece.from_rank = At(action.cause).rank;
    const auto put = [&](PathWork work, Nanoseconds start, Nanoseconds end) {
      piece.work = work;
      Put(piece, start, end);
    };
    put(PathWork::kOverhead, action.delivered, action.start);
    put(PathWork::kLatency, action.wire_end, action.delivered);
    put(PathWork::kBandwidth, action.wire_start, action.wire_end);
    put(PathWork::kContention, ready, action.wire_start);
  }

  void Put(PathPiece& piece, Nanoseconds start, Nanoseconds end) {
    if (start == end) return;
    piece.start = start;
    piece.end = end;
    path_.by_work[static_cast<size_t>(piece.work)] += end - start;
    if (piece.work == PathWork::kCompute || piece.work == PathWork::kUpdate) {
      path_.by_rank[static_cast<size_t>(piece.rank)] += end - start;
    }
    path_.pieces.push_back(piece);
  }

  const Trace& trace_;
  Causes causes_;
  CriticalPath path_;
};

}  // namespace

std::string PathWorkName(PathWork work) {
  switch (work) {
    case PathWork::kCompute:
      return "compute";
    case PathWork::kUpdate:
      return "update";
    case PathWork::kReduction:
      return "reduction";
    case PathWork::kContention:
      return "contention";
    case PathWork::kBandwidth:
      return "bandwidth";
    case PathWork::kLatency:
      return "latency";
    case PathWork::kOverhead:
      return "overhead";
  }
  CheckFailed(__FILE__, __LINE__, "the work is one of the enumerators");
}

CriticalPath FindCriticalPath(const Trace& trace) {
  if (AreSorted(trace)) return Walk(trace).Back();
  Trace sorted = trace;
  SortSpans(sorted);
  return Walk(sorted).Back();
}

}  // namespace pipelag
