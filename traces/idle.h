// Why a rank was idle: every idle nanosecond of a run, simulated or measured, under one name. Read
// off the spans alone; knows nothing of the schedule that was meant, nor of who produced the trace.
//
// How. Follow any action's causes (causes.h) back to the start of the run: that is its *chain*, and
// chain and time since the start are one and the same: action after action, hop after hop, without
// a hole. Each of its nanoseconds has a kind:
//  * a compute action (kind k, stage s) that took d: `structure`, the least of the medians of k,
//    taken per stage; `imbalance`, how much the median of k on s is above it; `noise`, d less the
//    median of k on s (negative where it was faster);
//  * a U, and an AR from its cause on: `update`;
//  * a hop: `contention` (queued behind other messages, or for a slot), `bandwidth` (on the wire),
//    `latency`, `overhead` (all was there and the action still did not start).
// An idle gap lies between an action that ended and one that started (before the first: the start
// of the run; after the last: the end of the run, whose chain is that of the run's last action).
// Both chains add up to their instant, hence the *difference of the two chains, kind by kind, adds
// up to the gap*: what the chain waited for holds more than the chain that brought the rank here.
// What both have in common, however slow, has cost nothing here and cancels out. Where the
// difference is negative for one kind (less latency but more work, say), the others exceed the gap;
// they are then served in the order noise, overhead, update, contention, bandwidth, latency,
// imbalance, structure until the gap is used up: what can be mended first, what the schedule itself
// demands last.
//
// What is left as structure is named by its phase. A run falls into sections, cut wherever no rank
// has begun a step before it ended all earlier ones (a flush); an asynchronous run is one section.
//  * `warm_up`: up to a rank's first B or I of the section;
//  * `cool_down`: after a rank's last F of the section;
//  * between two sections: warm_up as far as the chain lies in the new section, cool_down the rest;
//  * `upstream`: all others, in the steady phase.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "traces/trace.h"

namespace pipelag {

struct IdleShares {
  Nanoseconds warm_up{0};
  Nanoseconds cool_down{0};
  Nanoseconds upstream{0};
  Nanoseconds latency{0};
  Nanoseconds bandwidth{0};
  Nanoseconds contention{0};
  Nanoseconds update{0};
  Nanoseconds imbalance{0};
  Nanoseconds noise{0};
  Nanoseconds overhead{0};

  Nanoseconds Total() const;
  IdleShares& operator+=(const IdleShares& other);
  bool operator==(const IdleShares&) const = default;
};

/// A share and its name for people, "warm-up".
struct NamedShare {
  std::string_view name;
  Nanoseconds IdleShares::*share;
};
/// All of them, in the order of IdleShares.
std::span<const NamedShare> NamedShares();

/// One stretch of idle time of a compute lane; its shares add up to `end − start`. Times count from
/// the trace's own zero.
struct IdleGap {
  int rank = 0;
  Nanoseconds start{0};
  Nanoseconds end{0};
  IdleShares shares;
};

/// All gaps, by rank and time. The run lasts from the earliest start to the last end of a compute
/// action.
std::vector<IdleGap> FindIdleGaps(const Trace& trace);

/// Per rank the sum over its gaps: its idle time as in Metrics, to the nanosecond, provided that no
/// two actions of its compute lane overlap.
std::vector<IdleShares> ExplainIdle(const Trace& trace);

}  // namespace pipelag
