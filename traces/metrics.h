// Figures of a run: busy and idle time per rank, the bubble by each of its three definitions, step
// time. Computed from a trace, or from totals that an engine summed up itself.
#pragma once

#include <cstdint>
#include <vector>

#include "models/units.h"
#include "traces/trace.h"

namespace pipelag {

/// Sums over the compute lane of one rank.
struct RankTotals {
  Nanoseconds first_start{0};
  Nanoseconds last_end{0};
  Nanoseconds busy{0};
  Nanoseconds wait{0};         ///< idle before an action because its data was missing
  Nanoseconds transfer{0};     ///< its incoming messages under way: wire time plus latency, summed
  int64_t peak_in_flight = 0;  ///< stage activations held, from F's start to B's or W's end

  bool operator==(const RankTotals&) const = default;
};

/// A step time as a fraction in lowest terms, in ns per step.
struct StepTime {
  int64_t numerator = 0;
  int64_t denominator = 1;

  Nanoseconds RoundedUp() const;
  bool operator==(const StepTime&) const = default;
};

/// The definitions of "bubble" in use (each paper means another one).
struct Bubble {
  double idle_of_makespan = 0;  ///< Σ idle over ranks / (ranks · makespan)
  double idle_over_ideal = 0;   ///< (makespan − busy of the busiest rank) / that busy time
  double of_span = 0;           ///< max over ranks of (own span − own busy) / own span
  double steady_state = 0;      ///< 1 − busy per step of the busiest rank / steady step time
};

struct RankMetrics {
  RankTotals totals;
  Nanoseconds idle{0};  ///< makespan − busy
};

struct Metrics {
  Nanoseconds makespan{0};
  StepTime step_time;
  Bubble bubble;
  std::vector<RankMetrics> ranks;
};

/// `busy_per_step`: of the busiest rank, in steady state. Times are relative to the run's start. A
/// bubble is one division of two exact integers, hence the double nearest to the true fraction; 0
/// where there is nothing to divide by.
Metrics ComputeMetrics(const std::vector<RankTotals>& ranks, StepTime step_time,
                       Nanoseconds busy_per_step);

/// Of a trace. Time zero is the earliest start of a compute action, since a receive may be posted
/// long before anything happens. A step's time is its end less the end of the step before; the step
/// time is the median over the steps from `warm_up` on (the first has no step before it and never
/// counts; if none is left, the last one counts); of a single step: its makespan.
Metrics ComputeMetrics(const Trace& trace, int64_t warm_up = 1);

/// Totals per rank of a trace, relative to its earliest start. Two halves of an OVERLAP count as
/// one action.
std::vector<RankTotals> TotalsOf(const Trace& trace);

/// Ends of the steps, in order, relative to the earliest start: the last U, or the last B/W of the
/// step's micro-batches where nothing updates. A step with neither has no entry.
std::vector<Nanoseconds> StepEnds(const Trace& trace);

/// The step time alone, as in ComputeMetrics.
StepTime StepTimeOf(const Trace& trace, int64_t warm_up = 1);

/// Busy time per step of the busiest rank: on each rank the median over the steps from `warm_up` on
/// (over all steps if that leaves none), rounded up.
Nanoseconds BusyPerStep(const Trace& trace, int64_t warm_up = 1);

/// Of an even number of values the mean of the middle two, as a fraction in lowest terms. There
/// must be at least one value.
StepTime Median(std::vector<Nanoseconds> values);

/// Where the idle time of a rank lies: before its first action, between its actions, after its
/// last.
struct IdleParts {
  Nanoseconds before{0};
  Nanoseconds between{0};
  Nanoseconds after{0};
};
IdleParts PartsOfIdle(const Metrics& metrics, size_t rank);

/// Of a run at this step time; 0 if the trace does not say how many tokens a step has.
double TokensPerSecond(const Trace& trace, StepTime step_time);

/// Versions a gradient was old when applied, as measured: per stage the maximum over the run's F of
/// step − version read; -1 for a stage without F or without versions.
std::vector<int64_t> MeasuredDelay(const Trace& trace);

}  // namespace pipelag
