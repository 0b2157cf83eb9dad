// List scheduling of F, I and W on given times under a memory limit: at every time at which a rank
// is free it starts the most urgent of what is ready.
#pragma once

#include <limits>
#include <vector>

#include "models/schedule/generators.h"

namespace pipelag {

/// What a rank with nothing urgent to do may decide one way or another.
struct ListingRules {
  int reserve = 1;             ///< activations that chunk 0 leaves free for the last chunk
  bool always_fill = true;     ///< run a W even if it outlasts the wait that it fills
  bool forward_first = false;  ///< F before I where both are ready
  /// W put off before one goes ahead of an F, per place of the rank in the line (ZB-H1: 1, ZB-H2:
  /// 2, ZB-V: 0). Negative: W only fills.
  int put_off = 0;
  /// Forwards ahead of the backwards, per place from the end of the line. 0: as memory allows.
  int slope = 0;
};

inline constexpr int64_t kDeadEnd = std::numeric_limits<int64_t>::max();

/// What bounds a listing.
struct ListingBounds {
  int limit = 0;                ///< activations (of chunks) held on a rank at once
  int64_t too_late = kDeadEnd;  ///< a listing that does not end before this is given up
};

/// Fills the bodies of `schedule`, which are empty, by `rules`. Returns when the last action ends
/// on the given times, or kDeadEnd if it is given up or the rules led to where nothing can go on.
int64_t ListGreedily(Schedule& schedule, const GivenCosts& costs, const ListingBounds& bounds,
                     const ListingRules& rules);

/// The same with the F and I of each rank in the given order: a W is what a rank does while the
/// next of them is not ready or has no room.
int64_t ListInOrder(Schedule& schedule, const GivenCosts& costs, const ListingBounds& bounds,
                    const std::vector<std::vector<Action>>& order);

}  // namespace pipelag
