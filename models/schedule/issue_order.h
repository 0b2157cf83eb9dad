// One order over all lanes of a rank, for executors that have but one queue: computation, sends,
// receives and collectives. Knows no hardware, no seconds.
#pragma once

#include <vector>

#include "models/schedule/program.h"

namespace pipelag {

/// Per rank its restriction of one topological order of the run's dependency graph, in which a
/// whole transfer (send and receive) and a whole AR (of all members) is one node; keyed by start
/// time where everything takes one unit, ties: transfers by sender, payload and receiver, then ARs
/// by group, then computation. Hence two neighbours meet their messages in one common order, and an
/// executor cannot deadlock even if each rank does one thing after the other and a send waits for
/// its receive. Of a SEND and a RECV, `stage` is the one on this rank and `position` is −1. The
/// halves of an OVERLAP follow each other.
///
/// A schedule with a given order has that instead (of eager sends, send and receive need not meet),
/// its ARs put off until all members are there.
std::vector<std::vector<RunAction>> IssueOrder(const Program& program);

/// One step of the body with its transfers at their places in the issue order, the ARs where they
/// are posted: the given order, where there is one. Of a body without a flush: periodic_order.h.
std::vector<std::vector<Action>> BodyWithTransfers(const Program& program);

}  // namespace pipelag
