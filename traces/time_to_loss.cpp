#include "traces/time_to_loss.h"

#include <algorithm>

namespace pipelag {
namespace {

constexpr const char* kSynchronousProfile = "0";
constexpr double kSecondsPerHour = 3600;

/// The runs of a mode at one learning rate, none of them diverged.
struct Candidate {
  double learning_rate = 0;
  std::vector<const LossCurve*> runs;
};

std::vector<CurveMode> ModesOf(const std::vector<LossCurve>& curves) {
  std::vector<CurveMode> modes;
  for (const LossCurve& curve : curves) {
    if (std::find(modes.begin(), modes.end(), curve.mode) == modes.end()) {
      modes.push_back(curve.mode);
    }
  }
  return modes;
}

std::vector<Candidate> CandidatesOf(const std::vector<LossCurve>& curves, const CurveMode& mode) {
  std::vector<Candidate> candidates;
  for (const LossCurve& curve : curves) {
    if (!(curve.mode == mode)) continue;
    auto known = std::find_if(candidates.begin(), candidates.end(), [&](const Candidate& other) {
      return other.learning_rate == curve.learning_rate;
    });
    if (known == candidates.end()) {
      candidates.push_back({curve.learning_rate, {}});
      known = candidates.end() - 1;
    }
    known->runs.push_back(&curve);
  }
  std::erase_if(candidates, [](const Candidate& candidate) {
    return std::any_of(candidate.runs.begin(), candidate.runs.end(),
                       [](const LossCurve* run) { return run->diverged; });
  });
  return candidates;
}

/// Steps of every seed; empty unless all reach the loss.
std::vector<double> StepsOfAll(const Candidate& candidate, double target) {
  std::vector<double> steps;
  for (const LossCurve* run : candidate.runs) {
    const auto own = SmoothCurve(run->losses).StepsTo(target);
    if (!own) return {};
    steps.push_back(*own);
  }
  return steps;
}

/// The mean curves of a mode, one per learning rate: a loss is reached by whichever is first.
class Envelope {
 public:
  Envelope(const std::vector<LossCurve>& curves, const CurveMode& mode) {
    for (const Candidate& candidate : CandidatesOf(curves, mode)) {
      means_.emplace_back(candidate.runs);
    }
  }

  std::optional<double> StepsTo(double loss) const {
    std::optional<double> least;
    for (const SmoothCurve& mean : means_) {
      const auto steps = mean.StepsTo(loss);
      if (steps && (!least || *steps < *least)) least = steps;
    }
    return least;
  }
  /// The mean curve that reaches `loss` first; null if none does.
  const SmoothCurve* FirstTo(double loss) const {
    const auto least = StepsTo(loss);
    for (const SmoothCurve& mean : means_) {
      if (least && mean.StepsTo(loss) == least) return &mean;
    }
    return nullptr;
  }
  /// From the highest to the lowest.
  std::vector<double> Losses() const {
    std::vector<double> losses;
    for (const SmoothCurve& mean : means_) {
      losses.insert(losses.end(), mean.values().begin(), mean.values().end());
    }
    std::sort(losses.rbegin(), losses.rend());
    return losses;
  }

 private:
  std::vector<SmoothCurve> means_;
};

bool HasProfile(const ScheduleTime& schedule, const std::string& profile) {
  return std::find(schedule.profiles.begin(), schedule.profiles.end(), profile) !=
         schedule.profiles.end();
}

/// Modes that a schedule has curves for, under the first of its profile's names that any has.
std::vector<CurveMode> ModesFor(const std::vector<CurveMode>& modes, const ScheduleTime& schedule) {
  for (const std::string& profile : schedule.profiles) {
    std::vector<CurveMode> own;
    for (const CurveMode& mode : modes) {
      if (mode.profile == profile) own.push_back(mode);
    }
    if (!own.empty()) return own;
  }
  return {};
}

Spread Scaled(const Spread& spread, double factor) {
  return {spread.mean * factor, spread.least * factor, spread.greatest * factor,
          spread.standard_error * factor};
}

TimeToLoss TimeOf(const std::vector<LossCurve>& curves, const ScheduleTime& schedule,
                  const CurveMode& mode, double target) {
  TimeToLoss time{schedule, mode, target, {}, {}, {}, {}};
  for (const Candidate& candidate : CandidatesOf(curves, mode)) {
    const std::vector<double> steps = StepsOfAll(candidate, target);
    if (steps.empty()) continue;
    const Spread spread = SpreadOf(steps);
    if (time.steps && time.steps->mean <= spread.mean) continue;
    time.learning_rate = candidate.learning_rate;
    time.steps = spread;
  }
  if (!time.steps) return time;
  time.seconds = Scaled(*time.steps, schedule.step_seconds);
  time.gpu_hours = Scaled(*time.seconds, schedule.ranks / kSecondsPerHour);
  return time;
}

Payoff PayoffOf(const ScheduleTime& schedule, const CurveMode& mode, const Envelope& own,
                const ScheduleTime& base, const Envelope& synchronous, double target) {
  Payoff payoff{schedule, mode,  base.name, target, base.step_seconds / schedule.step_seconds,
                {},       false, {}};
  const std::vector<double> losses = synchronous.Losses();
  for (const double loss : losses) {
    const auto steps = own.StepsTo(loss);
    if (steps && *steps * schedule.step_seconds < *synchronous.StepsTo(loss) * base.step_seconds) {
      payoff.pays_down_to = loss;
    }
  }
  payoff.always_pays = payoff.pays_down_to.has_value() && *payoff.pays_down_to == losses.back();
  const SmoothCurve* curve = synchronous.FirstTo(target);
  if (curve != nullptr && payoff.throughput_gain > 1) {
    const double steps = *curve->StepsTo(target);
    payoff.cancelling_loss = curve->At(steps / payoff.throughput_gain) - curve->At(steps);
  }
  return payoff;
}

}  // namespace

std::vector<TimeToLoss> TimesToLoss(const std::vector<LossCurve>& curves,
                                    const std::vector<ScheduleTime>& schedules,
                                    const std::vector<double>& targets) {
  const std::vector<CurveMode> modes = ModesOf(curves);
  std::vector<TimeToLoss> times;
  for (const ScheduleTime& schedule : schedules) {
    for (const CurveMode& mode : ModesFor(modes, schedule)) {
      for (const double target : targets) times.push_back(TimeOf(curves, schedule, mode, target));
    }
  }
  return times;
}

std::vector<Payoff> Payoffs(const std::vector<LossCurve>& curves,
                            const std::vector<ScheduleTime>& schedules,
                            const std::vector<double>& targets) {
  const ScheduleTime* base = nullptr;
  for (const ScheduleTime& schedule : schedules) {
    if (!HasProfile(schedule, kSynchronousProfile)) continue;
    if (base == nullptr || schedule.step_seconds < base->step_seconds) base = &schedule;
  }
  std::vector<Payoff> payoffs;
  if (base == nullptr) return payoffs;
  const std::vector<CurveMode> modes = ModesOf(curves);
  for (const ScheduleTime& schedule : schedules) {
    if (HasProfile(schedule, kSynchronousProfile)) continue;
    for (const CurveMode& mode : ModesFor(modes, schedule)) {
      const Envelope synchronous(curves, {mode.optimizer, kSynchronousProfile, "none"});
      if (synchronous.Losses().empty()) continue;
      const Envelope own(curves, mode);
      for (const double target : targets) {
        payoffs.push_back(PayoffOf(schedule, mode, own, *base, synchronous, target));
      }
    }
  }
  return payoffs;
}

}  // namespace pipelag
