// What the runtime asks of a schedule beyond its being valid, so that one network is trained and
// not several. Knows no backend.
#pragma once

#include <vector>

#include "models/schedule/program.h"

namespace pipelag {

/// Throws ScheduleError saying why the schedule cannot be run: replicas that are not there
/// (replicate.h), copies of a stage that do not add up their gradients, a shared tensor that only
/// some of its holders share, or before their copies have added up theirs, a norm taken before all
/// that.
void CheckRunnable(const Schedule& schedule);

/// Whether the group waits for the gradients of a placed stage.
bool IsMember(const CollectiveGroup& group, int placed);

/// Whether a member stage is the first in its group that holds its slice: it speaks for all copies.
bool SpeaksIn(const Schedule& schedule, const CollectiveGroup& group, int placed);

/// Whether the group adds gradients, one summand for each of its stages.
bool AddsGradients(const CollectiveGroup& group);

/// The ranks of a group's stages, ascending.
std::vector<int> RanksOf(const Schedule& schedule, const CollectiveGroup& group);

/// The group over which the copies of a placed stage add up their gradients; null with one copy.
const CollectiveGroup* WeightGroupOf(const Schedule& schedule, int placed);

/// Whether first and last stage exchange the gradients of a tensor they share.
bool SharesTensor(const Schedule& schedule);

/// The same program as ranks with one compute lane execute it: what overlaps is done one after the
/// other, the F first.
Program Unpaired(const Program& program);

}  // namespace pipelag
