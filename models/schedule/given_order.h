// The order of computation and transfers that somebody else gave a schedule, most often a CSV file:
// what can be wrong with it, and what it comes to. Knows no hardware, no seconds.
#pragma once

#include <vector>

#include "models/schedule/program.h"

namespace pipelag {

/// Checks `given_order` of the program's schedule; nothing where there is none. Every message has
/// one send and one receive, on the ranks of its two stages, the send behind what makes it and the
/// receive before what needs it; messages of a lane leave in the order they are made and are
/// received in the order they leave; and ranks that do one thing after the other do not deadlock,
/// a receive waiting for its send and, unless sends are eager, a send for its receive. Throws
/// ScheduleError, whose positions are in the given order and whose grid shows it.
void CheckGivenOrder(const Program& program);

/// The given order of a program that passed, laid out over the run: see IssueOrder.
std::vector<std::vector<RunAction>> GivenIssueOrder(const Program& program);

}  // namespace pipelag
