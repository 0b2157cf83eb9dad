#include "sim/simulator.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <span>

#include "sim/contended.h"
#include "sim/long_run.h"

namespace pipelag {
namespace {

/// Sums up the run and, where asked, writes it down.
template <bool kSpans>
class Recorder {
 public:
  Recorder(const Program& program, const ActionTimes& times, std::vector<Span>& spans)
      : program_(program),
        bytes_(times.message_bytes()),
        spans_(spans),
        totals_(static_cast<size_t>(program.schedule().ranks)),
        started_(totals_.size()) {}

  void OnCompute(int rank, const RunAction& action, int64_t free, int64_t start, int64_t end,
                 bool overlapped) {
    const auto r = static_cast<size_t>(rank);
    RankTotals& totals = totals_[r];
    const bool second_half = overlapped && !action.overlaps_next;
    if (!second_half) {
      totals.busy += Nanoseconds{end - start};
      totals.wait += Nanoseconds{start - free};
      if (!started_[r]) {
        started_[r] = true;
        totals.first_start = Nanoseconds{start};
      }
      totals.last_end = Nanoseconds{end};
    }
    if constexpr (kSpans) {
      const bool versioned = action.kind != ActionKind::kBackwardWeight;
      spans_.push_back({.rank = rank,
                        .kind = action.kind,
                        .stage = action.stage,
                        .microbatch = action.microbatch,
                        .start = Nanoseconds{start},
                        .end = Nanoseconds{end},
                        .wait = Nanoseconds{second_half ? 0 : start - free},
                        .weight_version = versioned ? program_.WeightVersion(action) : -1,
                        .overlapped = overlapped});
    }
  }

  void OnTransfer(int lane, const RunAction& action, int64_t, int64_t start, int64_t sent,
                  int64_t delivered) {
    const Lane& ends = program_.lanes()[static_cast<size_t>(lane)];
    totals_[static_cast<size_t>(ends.receiver)].transfer += Nanoseconds{delivered - start};
    if constexpr (kSpans) {
      const bool forward = ends.payload == ActionKind::kSendForward;
      Span span{.rank = ends.sender,
                .kind = ends.payload,
                .stage = action.stage,
                .microbatch = action.microbatch,
                .peer = ends.receiver,
                .start = Nanoseconds{start},
                .end = Nanoseconds{sent},
                .bytes = bytes_};
      spans_.push_back(span);
      span.rank = ends.receiver;
      span.peer = ends.sender;
      span.kind = forward ? ActionKind::kReceiveForward : ActionKind::kReceiveBackward;
      span.stage = forward ? action.stage + 1 : action.stage - 1;
      span.end = Nanoseconds{delivered};
      spans_.push_back(span);
    }
  }

  void OnReduce(int rank, int group, int64_t step, int64_t start, int64_t end) {
    if constexpr (kSpans) {
      spans_.push_back({.rank = rank,
                        .kind = ActionKind::kAllReduce,
                        .stage = group,
                        .microbatch = step,
                        .start = Nanoseconds{start},
                        .end = Nanoseconds{end}});
    }
  }

  /// Figures of what was noted, and once more all since an earlier such note, so many times.
  const std::vector<RankTotals>& Noted() const { return totals_; }
  void Repeat(const std::vector<RankTotals>& since, int64_t times) {
    for (size_t rank = 0; rank < totals_.size(); ++rank) {
      for (const auto figure :
           {&RankTotals::busy, &RankTotals::wait, &RankTotals::transfer, &RankTotals::last_end}) {
        totals_[rank].*figure += (totals_[rank].*figure - since[rank].*figure) * times;
      }
    }
  }

  std::vector<RankTotals> TakeTotals() { return std::move(totals_); }

 private:
  const Program& program_;
  Bytes bytes_;
  std::vector<Span>& spans_;
  std::vector<RankTotals> totals_;
  std::vector<bool> started_;
};

/// Notes besides when every step ended: its last B, W or U.
template <class Inner>
class WithStepEnds {
 public:
  WithStepEnds(Inner& inner, int64_t steps) : inner_(inner), ends_(static_cast<size_t>(steps)) {}

  void OnCompute(int rank, const RunAction& action, int64_t free, int64_t start, int64_t end,
                 bool overlapped) {
    inner_.OnCompute(rank, action, free, start, end, overlapped);
    if (!YieldsWeightGradient(action.kind) && action.kind != ActionKind::kUpdate) return;
    int64_t& last = ends_[static_cast<size_t>(action.step)];
    last = std::max(last, end);
  }
  void OnTransfer(int lane, const RunAction& action, int64_t ready, int64_t start, int64_t sent,
                  int64_t delivered) {
    inner_.OnTransfer(lane, action, ready, start, sent, delivered);
  }
  void OnReduce(int rank, int group, int64_t step, int64_t start, int64_t end) {
    inner_.OnReduce(rank, group, step, start, end);
  }

  /// Mean over the middle half of the steps, which neither warm-up nor drain marks.
  StepTime MeanStep() const {
    if (ends_.size() == 1) return {ends_[0], 1};
    const size_t first = ends_.size() / 4;
    const size_t last = ends_.size() - 1 - first;
    const int64_t time = ends_[last] - ends_[first];
    const auto steps = static_cast<int64_t>(last - first);
    const int64_t divisor = std::gcd(time, steps);
    return {time / divisor, steps / divisor};
  }

 private:
  Inner& inner_;
  std::vector<int64_t> ends_;
};

void CheckDone(const Program& program, const std::vector<Blocked>& blocked, int receive_slots) {
  if (blocked.empty()) return;
  std::string ranks;
  for (const Blocked& b : blocked) {
    ranks += fmt::format("{}rank {} at {}{}{}", ranks.empty() ? "" : ", ", b.rank,
                         program.schedule().SliceOf(b.action.stage), KindName(b.action.kind),
                         b.action.microbatch);
  }
  throw Error(fmt::format("deadlock: {} receive slots per lane are too few: {} wait for ever",
                          receive_slots, ranks));
}

bool SharesCores(const Program& program, const SimulationOptions& options) {
  const int64_t ranks = int64_t{options.network.replicas} * program.schedule().ranks;
  return options.cores > 0 && (options.cores < ranks || !options.network.plain_if_unshared);
}

/// `layout`: null where nothing is shared.
bool IsRegular(const SimulationOptions& options, const ContendedLayout* layout) {
  return layout == nullptr && !options.noise.any();
}

/// Whether the noise is a factor for each rank, the same in every replica: then nothing is random.
bool ScalesRanksAlone(const Program& program, const SimulationOptions& options) {
  if (!options.noise.any() || options.noise.varies()) return false;
  const int ranks = program.schedule().ranks;
  CheckNoise(options.noise, ranks * options.network.replicas);
  const std::vector<double>& factors = options.noise.rank_factors;
  if (factors.size() == 1) return true;
  return std::equal(factors.begin() + ranks, factors.end(), factors.begin());
}

struct Executed {
  StepTime mean_step;              ///< where there is no exact one
  bool slowed = false;             ///< messages or reductions slowed each other
  std::vector<int64_t> lane_ends;  ///< of a regular run
};

/// Some steps of larger bodies take too long on a cluster to play them for the exact step time
/// alone.
constexpr int64_t kMostActionsOfBodyOnCluster = 100'000;
/// Shorter runs are over before a repetition could be made use of.
constexpr int64_t kLongRun = 48;

/// `layout`: null where nothing is shared.
template <class Recording>
Executed Execute(const Program& program, const ActionTimes& times, const SimulationOptions& options,
                 const ContendedLayout* layout, Recording& recorder) {
  const PlayLinks links = times.Links(options.receive_slots);
  if (IsRegular(options, layout)) {
    Play play(program, times, links, recorder);
    const bool skip = program.steps() > kLongRun && !options.spans;
    CheckDone(program, skip ? LongRun(program, play, recorder).Run() : play.Run(),
              options.receive_slots);
    Executed executed;
    for (size_t lane = 0; lane < program.lanes().size(); ++lane) {
      executed.lane_ends.push_back(play.LaneEnd(static_cast<int>(lane)));
    }
    return executed;
  }
  const int ranks = program.schedule().ranks;
  const int replicas = options.network.replicas;
  CheckNoise(options.noise, ranks * replicas);
  std::vector<NoisyTimes> noisy;
  for (int replica = 0; replica < replicas; ++replica) {
    noisy.emplace_back(program, times, options.noise, replica * ranks);
  }
  WithStepEnds clocked(recorder, program.steps());
  bool slowed = false;
  if (layout == nullptr) {
    CheckDone(program, Play(program, noisy[0], links, clocked).Run(), options.receive_slots);
  } else {
    Contended contended(program, std::span<const NoisyTimes>(noisy), *layout, options.receive_slots,
                        clocked);
    CheckDone(program, contended.Run(), options.receive_slots);
    slowed = contended.slowed();
  }
  return {clocked.MeanStep(), slowed, {}};
}

/// Whether in an endless run on a cluster nothing ever slows anything else, by a run that shows all
/// that ever happens with the times `alone`. False also if that cannot be told.
bool NeverSlows(const Program& program, const ActionTimes& times, const ActionTimes& alone,
                const SimulationOptions& options, const ContendedLayout& layout) {
  const std::optional<int64_t> steps = StepsThatShowAll(program, alone, options.receive_slots);
  if (!steps) return false;
  struct Silent {
    void OnCompute(int, const RunAction&, int64_t, int64_t, int64_t, bool) {}
    void OnTransfer(int, const RunAction&, int64_t, int64_t, int64_t, int64_t) {}
    void OnReduce(int, int, int64_t, int64_t, int64_t) {}
  } silent;
  const std::vector<ActionTimes> replicas(static_cast<size_t>(layout.replicas), times);
  const Program shown = program.WithSteps(*steps);
  Contended contended(shown, std::span<const ActionTimes>(replicas), layout, options.receive_slots,
                      silent);
  CheckDone(shown, contended.Run(), options.receive_slots);
  return !contended.slowed();
}

/// Busy time per step of the busiest rank of this run, rounded up.
Nanoseconds MeanBusy(const std::vector<RankTotals>& totals, int64_t steps) {
  Nanoseconds busiest{0};
  for (const RankTotals& rank : totals) busiest = std::max(busiest, rank.busy);
  return Nanoseconds{busiest.count() / steps + (busiest.count() % steps != 0 ? 1 : 0)};
}

}  // namespace

Simulation Simulate(const Program& program, const ActionTimes& times,
                    const SimulationOptions& options) {
  if (ScalesRanksAlone(program, options)) {
    SimulationOptions constant = options;
    constant.noise = {};
    ActionTimes scaled = WithRankFactors(program, times, options.noise);
    Simulation result = Simulate(program, scaled, constant);
    if (result.exact && !result.met) result.met = std::move(scaled);
    return result;
  }
  std::optional<ContendedLayout> layout;
  std::optional<ActionTimes> alone;
  if (options.network.cluster != nullptr) {
    CHECK(options.cores == 0);
    layout.emplace(program, times.message_bytes(), options.network);
    if (!options.noise.any()) alone = layout->TimesAlone(program, times);
  } else if (SharesCores(program, options)) {
    layout.emplace(program, times, options.network.replicas, options.cores);
  }
  if (alone && options.network.plain_if_unshared && !layout->MayShare()) {
    SimulationOptions plain = options;
    plain.network = {};
    Simulation result = Simulate(program, *alone, plain);
    result.met = std::move(alone);
    return result;
  }
  const Schedule& schedule = program.schedule();
  Simulation result;
  result.trace.schedule = schedule.name;
  result.trace.ranks = schedule.ranks;
  result.trace.stages = schedule.placed_stages();
  result.trace.microbatches = schedule.microbatches;
  result.trace.steps = program.steps();
  result.trace.stage_rank = schedule.placement;
  result.trace.replicas = schedule.replicas;
  const ContendedLayout* shared = layout ? &*layout : nullptr;
  std::vector<RankTotals> totals;
  Executed executed;
  const auto play = [&](auto recorder) {
    executed = Execute(program, times, options, shared, recorder);
    totals = recorder.TakeTotals();
  };
  if (options.spans) {
    play(Recorder<true>(program, times, result.trace.spans));
  } else {
    play(Recorder<false>(program, times, result.trace.spans));
  }
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    totals[static_cast<size_t>(rank)].peak_in_flight = program.PeakInFlightOfRank(rank);
  }
  Nanoseconds busy_per_step = MeanBusy(totals, program.steps());
  if (IsRegular(options, shared)) {
    const int64_t body_actions = program.actions() / program.steps();
    if (body_actions <= options.most_actions_for_critical_cycle) {
      result.steady = ExactSteadyState(program, times, {.receive_slots = options.receive_slots});
    } else {
      std::optional<StepTime> told;
      if (schedule.flushes() && program.steps() == 1 && options.receive_slots == 0) {
        told = StepTimeByFirstStep(program, totals, executed.lane_ends);
      }
      result.steady.step_time = told ? *told : ExactStepTime(program, times, options.receive_slots);
    }
    busy_per_step = times.BusyPerStep(program);
  } else {
    const bool small = program.actions() / program.steps() <= kMostActionsOfBodyOnCluster;
    if (alone && !executed.slowed && small &&
        NeverSlows(program, times, *alone, options, *layout)) {
      result.met = std::move(alone);
    }
    result.exact = result.met.has_value();
    if (result.exact) {
      result.steady =
          ExactSteadyState(program, *result.met, {.receive_slots = options.receive_slots});
      busy_per_step = times.BusyPerStep(program);
    } else {
      result.steady.step_time = executed.mean_step;
    }
  }
  result.metrics = ComputeMetrics(totals, result.steady.step_time, busy_per_step);
  if (options.spans) SortSpans(result.trace);
  return result;
}

}  // namespace pipelag
