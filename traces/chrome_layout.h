// Where everything goes in a Chrome trace: what is shown of each span, which events there are and
// in which order. Knows what viewers can stand; knows no JSON.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "traces/critical_path.h"
#include "traces/memory.h"
#include "traces/trace.h"

namespace pipelag::chrome {

/// A time as written: hundredths of a nanosecond beside it keep neighbours apart, see Shown.
struct Moment {
  Nanoseconds time{0};
  int hundredths = 0;  ///< within ±49, so that rounding to nanoseconds takes them away again
  auto operator<=>(const Moment&) const = default;
};

/// A span's slice. Viewers compute in doubles: where a slice ends at the very start of the next,
/// their ts + dur may come out behind it, and one of the two is drawn wrongly or lost. So such a
/// slice ends a hair early; of several that start at one instant, each starts a hair after the one
/// before.
struct Shown {
  Moment start;
  Moment end;
};

/// Category by which the reader knows what is no span.
inline constexpr std::string_view kPathCategory = "critical path";

/// One trace of the file. Its spans are sorted.
struct Part {
  std::shared_ptr<const Trace> trace;
  int64_t first_pid = 0;
  std::string prefix;           ///< of the process names
  std::vector<Shown> shown;     ///< for each span
  std::vector<PathPiece> path;  ///< empty if it is not to be shown
  const std::vector<RankMemory>* memory = nullptr;
};

/// One line of traceEvents, before its place among the others is known. Small, since there are
/// many.
struct Event {
  // At one instant slices come first: a flow binds to a slice that has begun.
  enum class What : uint8_t { kSlice, kPath, kFlowStart, kFlowEnd, kInFlight, kVersion, kMemory };

  Moment moment;
  const Part* part = nullptr;
  int64_t value = 0;  ///< counters; flows: id
  uint32_t span = 0;  ///< slices, flows, versions: index into the part's spans; kPath: into `path`
  int rank = 0;       ///< kPath: behind the last
  What what = What::kSlice;
};

/// What is shown of each span of a sorted trace: of one lane, no two slices overlap.
std::vector<Shown> Show(const Trace& trace);

/// Where a piece of a critical path is shown to end.
Moment ShownEnd(const std::vector<PathPiece>& path, size_t piece);

/// All events of all parts but the metadata, in the order of the file.
std::vector<Event> Events(const std::vector<Part>& parts, bool flows);

/// Whether two spans are on one lane.
bool SameLane(const Trace& trace, const Span& a, const Span& b);

}  // namespace pipelag::chrome
