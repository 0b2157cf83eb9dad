// The search for the best layouts: every candidate is held against what its memory and a bound of
// its step time say, and simulated unless that shows it to be beaten. Knows no JSON, no schedule
// names and no network: what a layout costs is asked of a function.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/plan_space.h"
#include "sim/planned_program.h"

namespace pipelag {

/// A candidate with all that is known of it before it is simulated.
struct PlanPoint {
  Candidate candidate;  ///< with the stages per rank that the schedule makes
  std::string refusal;  ///< why it cannot be laid out; empty: it can, and the rest holds
  std::shared_ptr<const PlannedProgram> program;
  std::shared_ptr<const Estimate> estimate;
  Bytes memory = 0;  ///< peak of the fullest rank; the greatest number if beyond a TiB
  int fullest_rank = 0;
  int gradient_delay = 0;
  Nanoseconds least_time{0};  ///< of a step
};

/// Throws Error for a layout that does not fit the network. Called on several threads.
using Estimator = std::function<Estimate(const RunLayout&)>;

/// In the order of the candidates; of several that come to the same run, as two schedules may of
/// some sizes, the first. Every program and every estimate is made once.
std::vector<PlanPoint> AssessCandidates(const std::vector<Candidate>& candidates,
                                        const Estimator& estimator, int threads);

/// The exact step time, by playing it.
Nanoseconds SimulatePoint(const PlanPoint& point);

/// What is wanted to be right although not everything is simulated.
struct PlanQuestion {
  Bytes memory = 0;  ///< of a device: points beyond are none
  size_t top = 10;   ///< so many of the fastest
  /// Points whose place among all is asked for; empty: none.
  std::function<bool(const PlanPoint&)> ranked;
};

/// Per point its step time once it is simulated.
using StepTimes = std::vector<std::optional<Nanoseconds>>;

/// The points to be simulated, ascending: all that could be among the fastest, on the Pareto front
/// of step time, memory and gradient delay, or before the best of the ranked ones. A point is
/// left out only if it does not fit, or if by its bound none of this can be. On the way the most
/// promising ones are simulated, into `times`. The same on any number of threads.
std::vector<size_t> PointsToSimulate(const std::vector<PlanPoint>& points,
                                     const PlanQuestion& question, int threads, StepTimes& times);

/// By step time, then memory, then delay, then order: all that were simulated.
std::vector<size_t> Ranking(const std::vector<PlanPoint>& points, const StepTimes& times);
/// How many are before a point that was simulated among all that fit; nothing where one that was
/// not simulated could be before it.
std::optional<size_t> PlaceOf(size_t point, const std::vector<PlanPoint>& points,
                              const PlanQuestion& question, const StepTimes& times);
/// Of the simulated, in the ranking's order: none of the others is as good in step time, memory and
/// gradient delay and better in one.
std::vector<size_t> ParetoFront(const std::vector<PlanPoint>& points, const StepTimes& times);

}  // namespace pipelag
