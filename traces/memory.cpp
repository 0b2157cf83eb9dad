// Adds up what comes and goes on each rank, in exact bytes.
#include "traces/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "models/error.h"

namespace pipelag {
namespace {

struct Change {
  Nanoseconds time{0};
  Bytes by = 0;
};

/// What comes and goes on each rank, in order of time.
std::vector<std::vector<Change>> Changes(const Trace& trace, const MemorySizes& sizes) {
  using Key = std::tuple<int, int, int64_t>;  // rank, stage, micro-batch
  const auto key = [](const Span& span) { return Key{span.rank, span.stage, span.microbatch}; };
  std::set<Key> kept;    // what a forward of the trace has made
  std::set<Key> halved;  // whose I is in the trace
  for (const Span& span : trace.spans) {
    if (IsForward(span.kind)) kept.insert(key(span));
    if (span.kind == ActionKind::kBackwardInput) halved.insert(key(span));
  }
  std::vector<std::vector<Change>> changes(static_cast<size_t>(trace.ranks));
  for (const Span& span : trace.spans) {
    if (!OnComputeLane(span.kind) || span.kind == ActionKind::kUpdate) continue;
    CHECK(span.rank >= 0 && span.rank < trace.ranks && !sizes.stages.empty());
    if (!kept.contains(key(span))) continue;
    const StageMemory& stage = sizes.stages[static_cast<size_t>(span.stage) % sizes.stages.size()];
    std::vector<Change>& own = changes[static_cast<size_t>(span.rank)];
    if (IsForward(span.kind)) {
      own.push_back({span.start, stage.activation});
    } else if (span.kind == ActionKind::kBackwardInput) {
      own.push_back({span.end, -stage.freed_at_input});
    } else {
      const Bytes gone = halved.contains(key(span)) ? stage.freed_at_input : 0;
      own.push_back({span.end, gone - stage.activation});
    }
  }
  for (std::vector<Change>& own : changes) {
    std::stable_sort(own.begin(), own.end(),
                     [](const Change& a, const Change& b) { return a.time < b.time; });
  }
  return changes;
}

}  // namespace

std::vector<RankMemory> MemoryOverTime(const Trace& trace, const MemorySizes& sizes,
                                       const std::vector<StandingMemory>& standing) {
  CHECK(standing.size() == static_cast<size_t>(trace.ranks));
  std::vector<RankMemory> ranks(standing.size());
  const auto changes = Changes(trace, sizes);
  for (size_t r = 0; r < ranks.size(); ++r) {
    RankMemory& rank = ranks[r];
    rank.standing = standing[r];
    rank.peak = standing[r].Total();
    Bytes now = rank.peak;
    for (const Change& change : changes[r]) {
      now += change.by;
      if (rank.curve.empty() || rank.curve.back().time != change.time) {
        rank.curve.push_back({change.time, now});
      } else {
        // The sum over an instant: what stands when all of it has happened.
        rank.curve.back().bytes = now;
      }
    }
    for (const HeldBytes& held : rank.curve) {
      if (held.bytes <= rank.peak) continue;
      rank.peak = held.bytes;
      rank.peak_time = held.time;
    }
    rank.peak_activations = rank.peak - standing[r].Total();
  }
  return ranks;
}

std::vector<Finding> BeyondMemory(const std::vector<RankMemory>& ranks, Bytes device) {
  std::vector<Finding> findings;
  if (device == 0) return findings;
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (ranks[r].peak <= device) continue;
    findings.push_back({fmt::format("rank {} needs {} at {}, {} more than its device's {}", r,
                                    FormatBytes(ranks[r].peak), FormatDuration(ranks[r].peak_time),
                                    FormatBytes(ranks[r].peak - device), FormatBytes(device)),
                        static_cast<int>(r)});
  }
  return findings;
}

}  // namespace pipelag
