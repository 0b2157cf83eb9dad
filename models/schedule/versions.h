// Weight versions and gradient delays, derived from the order of the endless body alone: never
// written down per schedule, never dependent on timing.
#pragma once

#include <vector>

#include "models/schedule/program.h"
#include "models/schedule/schedule.h"

namespace pipelag {

/// One entry per placed stage; position −1 where the stage has no U.
std::vector<UpdatePlace> FindUpdates(const Schedule& schedule);

/// How many updates of its own stage a body action of batch t finds missing from t: t − c(a).
int DelayOfLatest(const Schedule& schedule, const UpdatePlace& update, int position);

/// Per placed stage the constant d of policies whose version is max(0, t − d) for the whole batch:
/// all but `kLatest` and `kFlush`, where each action has its own (DelayOfLatest) and 0 stands here.
std::vector<int> BatchDelays(const Schedule& schedule, const std::vector<UpdatePlace>& updates);

/// Delays, live versions and gradient accumulators per placed stage. The schedule must be valid.
std::vector<StageVersions> DeriveVersions(const Schedule& schedule,
                                          const std::vector<UpdatePlace>& updates);

}  // namespace pipelag
