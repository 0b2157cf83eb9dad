// Deadlocks in words: who waits for whom in a circle. Must not know how it came to that.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/schedule/play.h"
#include "models/schedule/program.h"

namespace pipelag {

/// An action where it stands: position in its rank's list, text as in the grid.
struct Place {
  std::string text;
  int rank = 0;
  int position = 0;
};

/// `at` is the first action of a lane that is not done; it waits for `what`, which is not done
/// either and stands on lane `of`. Lanes are numbers of the caller's own.
struct Wait {
  int lane = 0;
  Place at;
  int of = 0;
  Place what;
};

/// One wait for every lane that is stuck; not empty. The first finding tells the circle,
/// "<opening>: 0B0 (rank 0) → 1B0 (rank 1) → 1F1 → …, each waiting for the next", the others of the
/// further lanes in it, then of those that wait behind it.
std::vector<Finding> CycleFindings(std::string_view opening, const std::vector<Wait>& waits);

/// Of a run that came to a stop by the law of execution. Actions are named as they stand in the
/// body.
std::vector<Finding> DeadlockFindings(const Program& program, const std::vector<Blocked>& blocked);

}  // namespace pipelag
