// The issue order of a body without a flush: which has no first step to be keyed by the start times
// of, but repeats itself forever. Knows no hardware, no seconds.
#pragma once

#include <vector>

#include "models/schedule/program.h"

namespace pipelag {

/// Per rank one period of one topological order of the endless run: every node of a step is given a
/// moment such that, where everything takes one unit and each step begins a fixed number of units
/// after the step before, nothing starts before what it depends on has ended; ties as in
/// IssueOrder. The computation stands in the order of the body, its ARs where they are posted, and
/// each send and receive carries the micro-batch that is its turn in that repetition.
std::vector<std::vector<Action>> PeriodicBodyWithTransfers(const Program& program);

}  // namespace pipelag
