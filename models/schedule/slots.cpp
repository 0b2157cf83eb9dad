#include "models/schedule/slots.h"

#include <algorithm>

namespace pipelag {
namespace {

/// Where an action stands in its rank's order.
using Place = int64_t;

/// Places of all F and all B/I of a run, by placed stage and micro-batch.
struct Places {
  explicit Places(const Program& program)
      : microbatches(static_cast<size_t>(program.total_microbatches())),
        forward(static_cast<size_t>(program.schedule().placed_stages()) * microbatches),
        gradient(forward.size()) {
    for (int rank = 0; rank < program.schedule().ranks; ++rank) {
      Place place = 0;
      for (LaneWalk walk(program, rank); !walk.done(); walk.Advance(), ++place) {
        const RunAction& a = walk.action();
        if (IsForward(a.kind)) forward[Cell(a.stage, a.microbatch)] = place;
        if (YieldsInputGradient(a.kind)) gradient[Cell(a.stage, a.microbatch)] = place;
      }
    }
  }

  size_t Cell(int stage, int64_t microbatch) const {
    return static_cast<size_t>(stage) * microbatches + static_cast<size_t>(microbatch);
  }

  size_t microbatches;
  std::vector<Place> forward;
  std::vector<Place> gradient;
};

}  // namespace

std::vector<int> NeverDelayingSlots(const Program& full) {
  const Schedule& s = full.schedule();
  // Beyond as many steps as the bodies reach across, the picture repeats.
  int64_t reach = 0;
  for (int rank = 0; rank < s.ranks; ++rank) {
    reach = std::max(reach, full.last_block(rank) - full.first_block(rank) - full.steps());
  }
  const Program program = full.WithSteps(std::min(full.steps(), 2 * reach + 3));
  const Places places(program);
  // Per lane the places, in the receiver's order, at which its messages are consumed.
  std::vector<std::vector<Place>> consumptions(program.lanes().size());
  for (int rank = 0; rank < s.ranks; ++rank) {
    Place place = 0;
    for (LaneWalk walk(program, rank); !walk.done(); walk.Advance(), ++place) {
      const int lane = program.ConsumedLane(walk.action().kind, walk.action().stage);
      if (lane >= 0) consumptions[static_cast<size_t>(lane)].push_back(place);
    }
  }

  std::vector<int> slots(program.lanes().size(), 1);
  std::vector<int64_t> produced(program.lanes().size());
  for (int rank = 0; rank < s.ranks; ++rank) {
    std::vector<Place> known(static_cast<size_t>(s.ranks), -1);  // of each other rank: ended up to
    for (LaneWalk walk(program, rank); !walk.done(); walk.Advance()) {
      const RunAction& a = walk.action();
      const int from = program.ConsumedLane(a.kind, a.stage);
      if (from >= 0) {
        const bool forward = IsForward(a.kind);
        const int producer = forward ? a.stage - 1 : a.stage + 1;
        const Place place = (forward ? places.forward : places.gradient)[places.Cell(
            producer, a.microbatch)];
        Place& ended = known[static_cast<size_t>(s.placement[static_cast<size_t>(producer)])];
        ended = std::max(ended, place);
      }
      const int lane = program.ProducedLane(a.kind, a.stage);
      if (lane < 0) continue;
      const auto l = static_cast<size_t>(lane);
      const Place ended = known[static_cast<size_t>(program.lanes()[l].receiver)];
      const auto consumed = std::upper_bound(consumptions[l].begin(), consumptions[l].end(), ended) -
                            consumptions[l].begin();
      slots[l] = std::max(slots[l], static_cast<int>(++produced[l] - consumed));
    }
  }
  return slots;
}

}  // namespace pipelag
