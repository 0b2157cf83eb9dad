// Why each action of a run started when it did: the one thing it waited for last. Read off the
// spans of a trace alone; knows nothing of the schedule that was meant, nor of who produced the
// trace.
#pragma once

#include <cstddef>
#include <vector>

#include "traces/trace.h"

namespace pipelag {

/// A compute action (an OVERLAP being one) or one rank's part in an AR, and its *cause*: of the
/// actions that had to end before it could start, the one whose result was there last.
///
/// Had to end before a compute action: the one before it on its lane; F and B/I: the action of the
/// neighbouring stage that produces their message; U: the AR of its step on its own rank that ended
/// last before it. Before an AR: the last B/W of its step on every member rank, and the AR before
/// it on its reduce lane. Between a cause's end and the action's start lie, in this order, each
/// possibly empty: queueing (until the SEND starts), wire (until it ends), latency (until the RECV
/// ends), delay (nothing was missing any more, and still it did not start). An action without
/// transfer spans that went idle before its producer ended counts the whole hop as latency. Of
/// results that are there at one instant, the lane's own wins. What ends after the action has
/// started (clocks of two ranks that disagree) is not its cause.
struct CausedAction {
  size_t span = 0;  ///< of the trace; with `pair`, the next one too
  bool pair = false;
  int rank = 0;
  Nanoseconds start{0};
  Nanoseconds end{0};
  int before = -1;  ///< action before it on its lane, -1: none
  int cause = -1;   ///< -1: the start of the run
  Nanoseconds wire_start{0};
  Nanoseconds wire_end{0};
  Nanoseconds delivered{0};
};

struct Causes {
  Nanoseconds start{0};  ///< of the run: earliest start of a compute action
  Nanoseconds end{0};    ///< last end of a compute action
  int last = -1;         ///< the action that ends then (of several the first in order); -1: none
  std::vector<CausedAction> actions;    ///< each behind its cause and the action before it
  std::vector<std::vector<int>> lanes;  ///< per rank the compute lane in order
};

/// `trace.spans` must be sorted (SortSpans); its ranks lie in [0, ranks).
Causes FindCauses(const Trace& trace);

}  // namespace pipelag
