#include "traces/in_flight.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "models/error.h"

namespace pipelag {
namespace {

using Key = std::tuple<int, int, int64_t>;

Key KeyOf(const Span& span) { return {span.rank, span.stage, span.microbatch}; }

/// Keys of all F, sorted.
std::vector<Key> Forwards(const Trace& trace) {
  std::vector<Key> keys;
  for (const Span& span : trace.spans) {
    if (IsForward(span.kind)) keys.push_back(KeyOf(span));
  }
  std::sort(keys.begin(), keys.end());
  return keys;
}

struct Change {
  Nanoseconds time{0};
  int64_t by = 0;
};

}  // namespace

std::vector<std::vector<HeldActivations>> ActivationsInFlight(const Trace& trace) {
  const std::vector<Key> forwards = Forwards(trace);
  std::vector<std::vector<Change>> changes(static_cast<size_t>(trace.ranks));
  for (const Span& span : trace.spans) {
    CHECK(span.rank >= 0 && span.rank < trace.ranks);
    std::vector<Change>& own = changes[static_cast<size_t>(span.rank)];
    if (IsForward(span.kind)) {
      own.push_back({span.start, 1});
    } else if (YieldsWeightGradient(span.kind) &&
               std::binary_search(forwards.begin(), forwards.end(), KeyOf(span))) {
      own.push_back({span.end, -1});
    }
  }
  std::vector<std::vector<HeldActivations>> held(changes.size());
  for (size_t rank = 0; rank < changes.size(); ++rank) {
    std::vector<Change>& own = changes[rank];
    std::stable_sort(own.begin(), own.end(),
                     [](const Change& a, const Change& b) { return a.time < b.time; });
    int64_t now = 0;
    for (const Change& change : own) {
      now += change.by;
      if (held[rank].empty() || held[rank].back().time != change.time) {
        held[rank].push_back({change.time, now});
      } else {
        // The sum over an instant is what stands after its ends and then its starts.
        held[rank].back().held = now;
      }
    }
  }
  return held;
}

int StagesOfNetwork(const Trace& trace) {
  const auto first = std::find_if(trace.spans.begin(), trace.spans.end(),
                                  [](const Span& span) { return IsForward(span.kind); });
  if (first == trace.spans.end()) return trace.stages;
  std::set<int> passed;
  for (const Span& span : trace.spans) {
    if (IsForward(span.kind) && span.microbatch == first->microbatch) passed.insert(span.stage);
  }
  return static_cast<int>(passed.size());
}

}  // namespace pipelag
