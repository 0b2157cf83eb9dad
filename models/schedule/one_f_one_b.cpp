// 1F1B with a flush (PipeDream-Flush, DAPPLE; Megatron-LM's non-interleaved order): warm-up forwards,
// then forward and backward in turn, then the remaining backwards, then the update.
#include <algorithm>

#include "models/schedule/linear.h"

namespace pipelag {

Schedule Generate1F1B(const GeneratorOptions& options) {
  Schedule schedule = LinearPipeline("1f1b", WeightPolicy::kFlush, options);
  const int64_t m = options.microbatches;
  for (int s = 0; s < options.ranks; ++s) {
    auto& body = schedule.body[static_cast<size_t>(s)];
    const int64_t warm_up = std::min(m, WarmUp(options, s));
    for (int64_t i = 0; i < warm_up; ++i) body.push_back(MakeAction(ActionKind::kForward, s, i));
    for (int64_t i = 0; i < m; ++i) {
      if (warm_up + i < m) body.push_back(MakeAction(ActionKind::kForward, s, warm_up + i));
      body.push_back(MakeAction(ActionKind::kBackward, s, i));
    }
    AppendReductions(schedule, s, 0);
    body.push_back(MakeAction(ActionKind::kUpdate, s, 0));
  }
  return schedule;
}

}  // namespace pipelag
