// A run drawn in characters: a row per rank, time to the right. Must not know who produced it.
#include "tools/timeline.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "models/error.h"
#include "traces/metrics.h"

namespace pipelag {
namespace {

constexpr int kLabelColumns = 9;  // "rank 123 "
constexpr int kMostRows = 40;

/// How time maps to columns: [0, end) in pieces of `per_column` nanoseconds, or, where a whole
/// number of columns is one unit, `repeat` columns for each piece.
struct Scale {
  int64_t zero = 0;
  int64_t end = 0;
  int64_t per_column = 1;
  int64_t repeat = 1;
  bool exact = false;
  bool numbered = true;  ///< actions are wide enough to tell their micro-batches apart
  bool cut = false;      ///< the run goes on after `end`

  int64_t pieces() const { return (end + per_column - 1) / per_column; }
};

struct Extent {
  int64_t first = std::numeric_limits<int64_t>::max();
  int64_t last = 0;
  int64_t unit = 0;      ///< the longest time of which every instant is a multiple
  int64_t shortest = 0;  ///< of the F, B, I and W that take any time
};

Extent ExtentOf(const Trace& trace) {
  Extent extent;
  for (const Span& span : trace.spans) {
    if (!OnComputeLane(span.kind)) continue;
    extent.first = std::min(extent.first, span.start.count());
    extent.last = std::max(extent.last, span.end.count());
    const int64_t length = (span.end - span.start).count();
    if (HasMicrobatch(span.kind) && length > 0) {
      extent.shortest = extent.shortest == 0 ? length : std::min(extent.shortest, length);
    }
  }
  for (const Span& span : trace.spans) {
    if (!OnComputeLane(span.kind)) continue;
    extent.unit = std::gcd(extent.unit, span.start.count() - extent.first);
    extent.unit = std::gcd(extent.unit, span.end.count() - extent.first);
  }
  return extent;
}

Scale ScaleOf(const Trace& trace, int64_t columns) {
  const Extent extent = ExtentOf(trace);
  Scale scale;
  if (extent.last <= extent.first || extent.unit == 0) return scale;
  scale.zero = extent.first;
  scale.end = extent.last - extent.first;
  const int64_t units = scale.end / extent.unit;
  if (units <= columns) {
    scale.exact = true;
    scale.per_column = extent.unit;
    scale.repeat = columns / units;
    return scale;
  }
  scale.per_column = (scale.end + columns - 1) / columns;
  if (extent.shortest >= scale.per_column) return scale;
  const std::vector<Nanoseconds> steps = StepEnds(trace);
  if (extent.shortest > 0 && steps.size() > 1 &&
      steps.front().count() / extent.shortest <= columns) {
    scale.cut = true;
    scale.per_column = extent.shortest;
    scale.end = extent.shortest * columns;
    return scale;
  }
  scale.numbered = false;
  return scale;
}

char Letter(const Span& span, bool numbered) {
  const auto number = static_cast<char>(span.microbatch % 10);
  switch (span.kind) {
    case ActionKind::kForward:
      return numbered ? static_cast<char>('0' + number) : 'F';
    case ActionKind::kBackward:
    case ActionKind::kBackwardInput:
      return numbered ? static_cast<char>('a' + number) : 'B';
    case ActionKind::kBackwardWeight:
      return numbered ? static_cast<char>('A' + number) : 'W';
    case ActionKind::kUpdate:
    case ActionKind::kAllReduce:
    case ActionKind::kSendForward:
    case ActionKind::kReceiveForward:
    case ActionKind::kSendBackward:
    case ActionKind::kReceiveBackward:
      return numbered ? '|' : 'U';
  }
  CheckFailed(__FILE__, __LINE__, "the kind is one of the enumerators");
}

/// What takes most of each piece of one rank's time.
class Row {
 public:
  explicit Row(const Scale& scale)
      : scale_(scale),
        letters_(static_cast<size_t>(scale.pieces()), '.'),
        most_(letters_.size()),
        idle_(letters_.size(), scale.per_column) {}

  void Draw(const Span& span) {
    const int64_t start = span.start.count() - scale_.zero;
    const int64_t end = std::min(span.end.count() - scale_.zero, scale_.end);
    for (int64_t t = start; t < end;) {
      const auto piece = static_cast<size_t>(t / scale_.per_column);
      const int64_t until = std::min(end, (t / scale_.per_column + 1) * scale_.per_column);
      idle_[piece] -= until - t;
      if (until - t > most_[piece]) {
        most_[piece] = until - t;
        letters_[piece] = Letter(span, scale_.numbered);
      }
      t = until;
    }
  }

  std::string Text() const {
    std::string text;
    for (size_t i = 0; i < letters_.size(); ++i) {
      text.append(static_cast<size_t>(scale_.repeat), idle_[i] > most_[i] ? '.' : letters_[i]);
    }
    return text;
  }

 private:
  const Scale& scale_;
  std::string letters_;
  std::vector<int64_t> most_;
  std::vector<int64_t> idle_;
};

std::string Legend(const Scale& scale) {
  const std::string column = FormatDuration(Nanoseconds{scale.per_column});
  std::string text =
      scale.numbered ? "0-9 forward and a-j backward of a micro-batch by its last digit (A-J: the "
                       "part for the weights), | update, . idle\n"
                     : "F forward, B backward, W the part for the weights, U update, . idle\n";
  if (scale.exact) {
    text += scale.repeat == 1 ? fmt::format("exact: a column is {}\n", column)
                              : fmt::format("exact: {} columns are {}\n", scale.repeat, column);
  } else {
    text += fmt::format("a column is {} and shows what takes most of it{}\n", column,
                        scale.cut ? "; the run goes on to the right" : "");
  }
  return text;
}

}  // namespace

std::string FormatTimeline(const Trace& trace, int columns) {
  const Scale scale = ScaleOf(trace, std::max(20, columns - kLabelColumns));
  if (scale.end == 0) return "nothing takes any time\n";
  std::vector<Row> rows(static_cast<size_t>(trace.ranks), Row(scale));
  for (const Span& span : trace.spans) {
    if (OnComputeLane(span.kind)) rows[static_cast<size_t>(span.rank)].Draw(span);
  }
  std::string text;
  for (int rank = 0; rank < trace.ranks; ++rank) {
    if (trace.ranks > kMostRows && rank == kMostRows / 2) {
      text += fmt::format("({} more ranks)\n", trace.ranks - kMostRows);
      rank = trace.ranks - kMostRows / 2;
    }
    text += fmt::format("rank {:<3} {}\n", rank, rows[static_cast<size_t>(rank)].Text());
  }
  return text + Legend(scale);
}

int TerminalColumns() {
  constexpr int kColumns = 100;
  winsize size{};
  if (isatty(STDOUT_FILENO) == 0 || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 ||
      size.ws_col == 0) {
    return kColumns;
  }
  return size.ws_col;
}

}  // namespace pipelag
