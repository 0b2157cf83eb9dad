#include "sim/simulator.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/schedule/play.h"

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

  std::vector<RankTotals> TakeTotals() { return std::move(totals_); }

 private:
  const Program& program_;
  Bytes bytes_;
  std::vector<Span>& spans_;
  std::vector<RankTotals> totals_;
  std::vector<bool> started_;
};

struct Executed {
  std::vector<RankTotals> totals;
  std::vector<int64_t> times;  ///< Play::Times() at the end
};

template <bool kSpans>
Executed Execute(const Program& program, const ActionTimes& times, const SimulationOptions& options,
                 std::vector<Span>& spans) {
  Recorder<kSpans> recorder(program, times, spans);
  const PlayLinks links{times.occupancy_ns(), times.latency_ns(), options.receive_slots};
  Play play(program, times, links, recorder);
  const std::vector<Blocked> blocked = play.Run();
  if (!blocked.empty()) {
    std::string ranks;
    for (const Blocked& b : blocked) {
      ranks += fmt::format("{}rank {} at {}{}{}", ranks.empty() ? "" : ", ", b.rank,
                           program.schedule().SliceOf(b.action.stage), KindName(b.action.kind),
                           b.action.microbatch);
    }
    throw Error(fmt::format("deadlock: {} receive slots per lane are too few: {} wait for ever",
                            options.receive_slots, ranks));
  }
  return {recorder.TakeTotals(), play.Times()};
}

}  // namespace

Simulation Simulate(const Program& program, const ActionTimes& times,
                    const SimulationOptions& options) {
  const Schedule& schedule = program.schedule();
  Simulation result;
  result.trace.schedule = schedule.name;
  result.trace.ranks = schedule.ranks;
  result.trace.stages = schedule.placed_stages();
  result.trace.microbatches = schedule.microbatches;
  result.trace.steps = program.steps();
  result.trace.stage_rank = schedule.placement;
  Executed executed = options.spans ? Execute<true>(program, times, options, result.trace.spans)
                                    : Execute<false>(program, times, options, result.trace.spans);
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    executed.totals[static_cast<size_t>(rank)].peak_in_flight = program.PeakInFlightOfRank(rank);
  }
  int64_t actions = 0;
  for (const auto& body : schedule.body) actions += static_cast<int64_t>(body.size());
  if (actions <= options.most_actions_for_critical_cycle) {
    result.steady = ExactSteadyState(program, times, options.receive_slots);
  } else {
    result.steady.step_time = ExactStepTime(program, times, options.receive_slots, executed.times);
  }
  result.metrics =
      ComputeMetrics(executed.totals, result.steady.step_time, times.BusyPerStep(program));
  if (options.spans) SortSpans(result.trace);
  return result;
}

}  // namespace pipelag
