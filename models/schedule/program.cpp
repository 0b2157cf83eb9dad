#include "models/schedule/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <tuple>

#include "models/schedule/deadlock.h"
#include "models/schedule/given_order.h"
#include "models/schedule/play.h"
#include "models/schedule/versions.h"

namespace pipelag {
namespace {

struct NoObserver {
  void OnCompute(int, const RunAction&, int64_t, int64_t, int64_t, bool) {}
  void OnTransfer(int, const RunAction&, int64_t, int64_t, int64_t, int64_t) {}
  void OnReduce(int, int, int64_t, int64_t, int64_t) {}
};

void CheckSteps(int64_t steps) {
  if (steps < 1) throw Error(fmt::format("--steps must be at least 1, not {}", steps));
  if (steps > std::numeric_limits<int32_t>::max()) {
    throw Error(fmt::format("--steps {} is more than the 2147483647 that can be numbered", steps));
  }
}

}  // namespace

Program::Program(Schedule schedule, int64_t steps)
    : schedule_(std::make_shared<const Schedule>(std::move(schedule))), steps_(steps) {
  CheckSteps(steps);
  std::vector<Finding> findings = ValidateSizes(*schedule_);
  if (!findings.empty()) throw ScheduleError(*schedule_, std::move(findings));
  if (std::optional<PlainOrder> plain = FindPlainOrder(*schedule_)) {
    TakePlain(std::move(*plain));
  } else {
    findings = Validate(*schedule_);
    if (!findings.empty()) throw ScheduleError(*schedule_, std::move(findings));
    updates_ = FindUpdates(*schedule_);
    batch_delays_ = BatchDelays(*schedule_, updates_);
    versions_ = DeriveVersions(*schedule_, updates_);
    BuildLanes();
    BuildShifts();
    BuildPeaks();
    FindDeadlock();
  }
  CheckGivenOrder(*this);
}

/// What is left to do where one pass has shown that there is nothing to find.
void Program::TakePlain(PlainOrder order) {
  updates_ = std::move(order.updates);
  batch_delays_ = BatchDelays(*schedule_, updates_);
  versions_ = DeriveVersions(*schedule_, updates_);
  BuildLanes();
  min_shift_.assign(schedule_->body.size(), 0);
  max_shift_ = min_shift_;
  peak_stage_ = std::move(order.peak_of_stage);
  peak_rank_ = std::move(order.peak_of_rank);
  window_ = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(order.most_open)));
  step_window_ = 2;
  if (!PlainOrderEnds(*schedule_)) FindDeadlock();
}

int64_t Program::actions() const {
  int64_t of_step = 0;
  for (const auto& body : schedule_->body) of_step += static_cast<int64_t>(body.size());
  return of_step * steps_;
}

Program Program::WithSteps(int64_t steps) const {
  CheckSteps(steps);
  Program other = *this;
  other.steps_ = steps;
  // Else one step is like another, and the peaks are those of any.
  if (least_shift_ < greatest_shift_) other.BuildPeaks();
  return other;
}

void Program::BuildLanes() {
  const Schedule& s = *schedule_;
  std::map<std::tuple<int, int, ActionKind>, int> known;
  const auto lane = [&](int from, int to, ActionKind payload) {
    const int sender = s.placement[static_cast<size_t>(from)];
    const int receiver = s.placement[static_cast<size_t>(to)];
    if (sender == receiver) return -1;
    const auto [entry, fresh] =
        known.try_emplace({sender, receiver, payload}, static_cast<int>(lanes_.size()));
    if (fresh) lanes_.push_back({sender, receiver, payload});
    return entry->second;
  };
  for (int stage = 0; stage < s.placed_stages(); ++stage) {
    forward_lane_.push_back(s.IsLast(stage) ? -1
                                            : lane(stage, stage + 1, ActionKind::kSendForward));
    backward_lane_.push_back(s.IsFirst(stage) ? -1
                                              : lane(stage, stage - 1, ActionKind::kSendBackward));
  }
}

void Program::BuildShifts() {
  const Schedule& s = *schedule_;
  for (const auto& body : s.body) {
    int64_t low = std::numeric_limits<int32_t>::max();
    int64_t high = std::numeric_limits<int32_t>::min();
    for (const Action& action : body) {
      const int64_t shift = s.ShiftOf(action);
      low = std::min(low, shift);
      high = std::max(high, shift);
    }
    if (body.empty()) low = high = 0;
    min_shift_.push_back(static_cast<int>(low));
    max_shift_.push_back(static_cast<int>(high));
    least_shift_ = std::min(least_shift_, low);
    greatest_shift_ = std::max(greatest_shift_, high);
  }
  const auto range = static_cast<uint64_t>(greatest_shift_ - least_shift_) + 1;
  window_ = static_cast<int64_t>(std::bit_ceil(range * static_cast<uint64_t>(s.microbatches)));
  step_window_ = static_cast<int64_t>(std::bit_ceil(range + 1));
}

int64_t Program::StepsThatShowAll() const {
  const int64_t reach = *std::max_element(max_shift_.begin(), max_shift_.end()) -
                        *std::min_element(min_shift_.begin(), min_shift_.end());
  return reach == 0 ? 1 : 2 * reach + 3;
}

/// Runs of a legal body are legal, so longer ones than the probe need no look.
void Program::FindDeadlock() const {
  Program probe = *this;
  probe.steps_ = StepsThatShowAll();
  const UnitTimes costs;
  NoObserver observer;
  const std::vector<Blocked> blocked = Play(probe, costs, PlayLinks{}, observer).Run();
  if (blocked.empty()) return;
  throw ScheduleError(*schedule_, DeadlockFindings(probe, blocked));
}

/// The most held at once is reached as soon as no repetition is clipped any more, so a few suffice.
/// On the way the window is narrowed where a stage takes its micro-batches in ascending order: then
/// those between their F and their B or I, which are all that messages can be about, are
/// consecutive.
void Program::BuildPeaks() {
  const Schedule& s = *schedule_;
  struct Counts {
    int64_t forwards = 0;
    int64_t gradients = 0;  // B or I
    int64_t freed = 0;      // B or W
    int64_t most_open = 0;
    bool ascending = true;
  };
  peak_stage_.assign(static_cast<size_t>(s.placed_stages()), 0);
  peak_rank_.assign(static_cast<size_t>(s.ranks), 0);
  std::vector<Counts> counts(static_cast<size_t>(s.placed_stages()));
  bool all_steps = true;
  for (int rank = 0; rank < s.ranks; ++rank) {
    const auto r = static_cast<size_t>(rank);
    const int64_t reach = max_shift_[r] - min_shift_[r];
    const int64_t enough = reach == 0 ? 1 : 2 * reach + 2;
    all_steps = all_steps && enough <= steps_;
    int held_by_rank = 0;
    for (LaneWalk walk(*this, rank, std::min(steps_, enough)); !walk.done(); walk.Advance()) {
      const RunAction& action = walk.action();
      Counts& c = counts[static_cast<size_t>(action.stage)];
      if (IsForward(action.kind)) {
        c.ascending = c.ascending && action.microbatch == c.forwards;
        ++c.forwards;
        c.most_open = std::max(c.most_open, c.forwards - c.gradients);
        int& peak = peak_stage_[static_cast<size_t>(action.stage)];
        peak = std::max(peak, static_cast<int>(c.forwards - c.freed));
        peak_rank_[r] = std::max(peak_rank_[r], ++held_by_rank);
        continue;
      }
      if (YieldsInputGradient(action.kind)) {
        c.ascending = c.ascending && action.microbatch == c.gradients;
        ++c.gradients;
      }
      if (YieldsWeightGradient(action.kind)) {
        ++c.freed;
        --held_by_rank;
      }
    }
  }
  if (!all_steps) return;
  int64_t open = 1;
  for (const Counts& c : counts) {
    if (!c.ascending) return;
    open = std::max(open, c.most_open);
  }
  window_ = std::min(window_, static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(open))));
}

int Program::ConsumedLane(ActionKind kind, int placed) const {
  if (IsForward(kind) && !schedule_->IsFirst(placed)) return ForwardLane(placed - 1);
  if (YieldsInputGradient(kind) && !schedule_->IsLast(placed)) return BackwardLane(placed + 1);
  return -1;
}

int Program::ProducedLane(ActionKind kind, int placed) const {
  if (IsForward(kind)) return ForwardLane(placed);
  if (YieldsInputGradient(kind)) return BackwardLane(placed);
  return -1;
}

int Program::ReadDelay(int placed, int position) const {
  const auto stage = static_cast<size_t>(placed);
  const bool own = schedule_->policy == WeightPolicy::kLatest || schedule_->flushes();
  return own ? DelayOfLatest(*schedule_, updates_[stage], position) : batch_delays_[stage];
}

int64_t Program::WeightVersion(const RunAction& action) const {
  if (action.kind == ActionKind::kUpdate) return action.step + 1;
  return std::max<int64_t>(0, action.step - ReadDelay(action.stage, action.position));
}

}  // namespace pipelag
