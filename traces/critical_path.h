// The critical path of a run: the actions and hops that follow one another without a hole from its
// start to its end, and so are as long as it. Read off the spans alone; knows nothing of who
// produced the trace.
#pragma once

#include <string>
#include <vector>

#include "traces/trace.h"

namespace pipelag {

/// What a stretch of the path was spent on. The last five as in idle.h.
enum class PathWork : uint8_t {
  kCompute,
  kUpdate,     ///< U
  kReduction,  ///< AR, the wait for it behind its last member included
  kContention,
  kBandwidth,
  kLatency,
  kOverhead,
};
inline constexpr size_t kPathWorks = static_cast<size_t>(PathWork::kOverhead) + 1;

/// "compute", "latency", …
std::string PathWorkName(PathWork work);

struct PathPiece {
  PathWork work = PathWork::kCompute;
  int rank = 0;       ///< of the action; of a hop the receiver
  int from_rank = 0;  ///< of a hop the sender, else `rank`
  std::string name;   ///< the action's, "0F3+0B1"; of a hop that of the action it leads to
  Nanoseconds start{0};
  Nanoseconds end{0};
};

/// The pieces in order, each beginning where the one before it ends, and what they add up to.
/// Pieces of no length are left out.
struct CriticalPath {
  std::vector<PathPiece> pieces;
  std::vector<Nanoseconds> by_work;  ///< kPathWorks entries
  std::vector<Nanoseconds> by_rank;  ///< of compute and updates, an entry per rank
};

/// Of the action that ends last, its cause, its cause's cause and so on (causes.h). An action that
/// nothing is known to have caused began late by itself: overhead.
CriticalPath FindCriticalPath(const Trace& trace);

}  // namespace pipelag
