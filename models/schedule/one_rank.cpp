#include "models/schedule/one_rank.h"

#include "models/schedule/pipelines.h"

namespace pipelag {

Schedule OnOneRank(int stages, int microbatches, bool split) {
  Schedule schedule =
      LoopedPipeline("one-rank", stages, {.ranks = 1, .microbatches = microbatches});
  auto& body = schedule.body.front();
  for (int i = 0; i < microbatches; ++i) {
    for (int s = 0; s < stages; ++s) body.push_back(MakeAction(ActionKind::kForward, s, i));
    for (int s = stages - 1; s >= 0; --s) {
      if (split) {
        body.push_back(MakeAction(ActionKind::kBackwardInput, s, i));
        body.push_back(MakeAction(ActionKind::kBackwardWeight, s, i));
      } else {
        body.push_back(MakeAction(ActionKind::kBackward, s, i));
      }
    }
  }
  AppendUpdates(schedule);
  return schedule;
}

}  // namespace pipelag
