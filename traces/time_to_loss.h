// Loss curves and step times to hours: when each schedule reaches a loss, and up to which loss one
// whose gradients are late is worth it. An update of a curve stands for an update of the schedule.
// Knows neither how curves nor how step times came about.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "traces/delay_study.h"
#include "traces/loss_curves.h"

namespace pipelag {

struct ScheduleTime {
  std::string name;
  std::vector<std::string> profiles;  ///< the delay profile it has, under every name of it
  int ranks = 1;
  double step_seconds = 1;
};

/// One schedule, optimizer and correction to one loss, at the learning rate that gets there first.
struct TimeToLoss {
  ScheduleTime schedule;
  CurveMode mode;
  double target = 0;
  /// No value unless every seed of some learning rate reaches the target.
  std::optional<double> learning_rate;
  std::optional<Spread> steps;  ///< over seeds, as are the two below
  std::optional<Spread> seconds;
  std::optional<Spread> gpu_hours;  ///< ranks times time
};

/// By schedule, mode and target; modes whose profile no schedule has are left out.
std::vector<TimeToLoss> TimesToLoss(const std::vector<LossCurve>& curves,
                                    const std::vector<ScheduleTime>& schedules,
                                    const std::vector<double>& targets);

/// A schedule with late gradients against the fastest synchronous one, for one optimizer and
/// correction.
struct Payoff {
  ScheduleTime schedule;
  CurveMode mode;
  std::string against;
  double target = 0;
  double throughput_gain = 1;  ///< steps it makes while the other makes one
  /// The lowest loss, of those the synchronous one reaches, that it reaches sooner; none: it never
  /// does.
  std::optional<double> pays_down_to;
  bool always_pays = false;  ///< that is the lowest the synchronous one reaches
  /// In reverse: what would cancel the gain. More steps by throughput_gain − 1; or a loss higher by
  /// this after as many steps as the synchronous one needs to the target. None if it has no gain or
  /// the target is not reached.
  std::optional<double> cancelling_loss;
};

/// Empty without a synchronous schedule or its curves.
std::vector<Payoff> Payoffs(const std::vector<LossCurve>& curves,
                            const std::vector<ScheduleTime>& schedules,
                            const std::vector<double>& targets);

}  // namespace pipelag
