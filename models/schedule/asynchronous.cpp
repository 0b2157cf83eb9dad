// The schedules without a flush whose ranks run 1F1B for ever: PipeDream (Narayanan et al., SOSP
// 2019; weights stashed per batch, an update every m micro-batches, classically m = 1) and
// PipeDream-2BW (Narayanan et al., ICML 2021, arXiv 2006.09503; two weight versions). Warm-up and
// drain are the clipping of the endless body.
#include <fmt/format.h>

#include "models/schedule/linear.h"

namespace pipelag {
namespace {

/// Stage s is `warm_up` forwards ahead of its backwards. U early: behind the batch's last B. U late:
/// directly before the first F of batch t + 2.
void FillEndless1F1B(Schedule& schedule, const GeneratorOptions& options, bool late) {
  const int64_t m = options.microbatches;
  for (int s = 0; s < options.ranks; ++s) {
    auto& body = schedule.body[static_cast<size_t>(s)];
    const int64_t warm_up = WarmUp(options, s);
    for (int64_t i = 0; i < m; ++i) {
      const int64_t next = warm_up + i;
      if (late && next % m == 0) {
        body.push_back(MakeAction(ActionKind::kUpdate, s, next / m - 2));
      }
      body.push_back(MakeAction(ActionKind::kForward, s, next));
      body.push_back(MakeAction(ActionKind::kBackward, s, i));
    }
    AppendReductions(schedule, s, 0);
    if (!late) body.push_back(MakeAction(ActionKind::kUpdate, s, 0));
  }
}

}  // namespace

Schedule GeneratePipeDream(const GeneratorOptions& options) {
  if (options.norm || options.barrier) {
    throw Error(fmt::format("pipedream cannot wait for {}: it would undo the schedule",
                            options.norm ? "a global gradient norm (--clip-norm)"
                                         : "a global barrier (--flush-barrier)"));
  }
  Schedule schedule = LinearPipeline("pipedream", WeightPolicy::kStashed, options);
  FillEndless1F1B(schedule, options, false);
  return schedule;
}

Schedule Generate2BW(const GeneratorOptions& options) {
  if (options.barrier) {
    throw Error("2bw has no flush, so it cannot have a flush barrier (--flush-barrier)");
  }
  Schedule schedule = LinearPipeline("2bw", WeightPolicy::kDoubleBuffered, options);
  FillEndless1F1B(schedule, options,
                  options.late_update.value_or(options.reduction || options.norm));
  return schedule;
}

}  // namespace pipelag
