// The exact step time of an endless run: the maximum cycle ratio of the body's periodic event
// graph. Knows no wall clock and no schedule names.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "models/schedule/program.h"
#include "sim/times.h"
#include "traces/metrics.h"

namespace pipelag {

/// The mean step time of the endless body, and what limits it: a cycle of actions, each waiting for
/// the one before, the first for the last one of some steps earlier. Of several such the one found.
struct SteadyState {
  StepTime step_time;
  std::vector<int> critical_ranks;   ///< ranks on the critical cycle, ascending
  std::vector<int> critical_lanes;   ///< lanes whose messages are on it, ascending
  std::vector<int> critical_groups;  ///< groups whose reductions are on it, ascending
  int64_t critical_reductions = 0;   ///< how many of them, of gradients
  int64_t critical_steps = 0;        ///< how many steps the cycle spans

  bool crosses_links() const { return !critical_lanes.empty(); }
};

struct SteadyStateOptions {
  int receive_slots = 0;  ///< per lane; 0: as many as never delay
  /// As if updates waited for no reduction, norm or barrier.
  bool without_reductions = false;
};

/// Builds the whole event graph, some 300 bytes per action of the body.
SteadyState ExactSteadyState(const Program& program, const ActionTimes& times,
                             const SteadyStateOptions& options = {});

/// The step time alone, by playing until the state of the run comes back (see LongRun), which needs
/// no graph; as above where it does not come back soon.
StepTime ExactStepTime(const Program& program, const ActionTimes& times, int receive_slots = 0);

/// A number of steps after which a run of the program has shown all that ever happens in an endless
/// one: its state has come back, and what follows has gone on for one period more. Nothing if the
/// state does not come back soon.
std::optional<int64_t> StepsThatShowAll(const Program& program, const ActionTimes& times,
                                        int receive_slots = 0);

/// The step time by the figures of the first step alone, where they tell it: of a schedule with a
/// flush and free slots, `ranks` and the ends of the lanes after one step that found everything
/// free. The second step is the first one over again, later by the longest span D of a rank, if no
/// rank or lane is free later than D behind its own first start, and every rank whose first action
/// waited for nothing is free D behind it: then every first action is later by D, hence everything.
std::optional<StepTime> StepTimeByFirstStep(const Program& program,
                                            const std::vector<RankTotals>& ranks,
                                            const std::vector<int64_t>& lane_ends);

}  // namespace pipelag
