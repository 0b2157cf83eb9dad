// The plain case of a schedule: one stream, a flush, every stage taking its micro-batches one by
// one. There a single pass with a few counters proves that nothing is wrong, and whether a run ends
// is a comparison of counts. Must not know what is wrong with any other schedule.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "models/schedule/schedule.h"

namespace pipelag {

/// Where the U of a placed stage stands in its rank's body.
struct UpdatePlace {
  int rank = 0;
  int position = -1;
  int shift = 0;  ///< its relative step number
};

/// What the pass has seen.
struct PlainOrder {
  std::vector<UpdatePlace> updates;  ///< per stage
  std::vector<int> peak_of_stage;    ///< activations held at once, from F to B or W
  std::vector<int> peak_of_rank;
  int most_open = 1;  ///< micro-batches between their F and their B or I on one stage
};

/// Nothing if the schedule is not of this kind: two streams, no flush, groups, overlaps, or a stage
/// whose F, whose B and I, or whose B and W are not numbered 0 to m − 1 in this order. A schedule
/// of this kind has nothing that Validate would find. The sizes must be sound.
std::optional<PlainOrder> FindPlainOrder(const Schedule& schedule);

/// Whether a run of a schedule of this kind comes to its end: not if there is a deadlock.
bool PlainOrderEnds(const Schedule& schedule);

}  // namespace pipelag
