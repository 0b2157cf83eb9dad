#include "models/schedule/versions.h"

#include <algorithm>
#include <limits>

namespace pipelag {
namespace {

bool EachActionHasItsOwn(WeightPolicy policy) {
  return policy == WeightPolicy::kLatest || policy == WeightPolicy::kFlush;
}

/// A place in a rank's endless order, relative to the batch it speaks of: greater is later.
struct Place {
  int block = 0;
  int position = 0;
  auto operator<=>(const Place&) const = default;
};

/// First and last actions of batch 0 of one placed stage.
struct Extent {
  Place last_reader{std::numeric_limits<int>::min(), 0};
  Place first_gradient{std::numeric_limits<int>::max(), 0};
};

}  // namespace

std::vector<UpdatePlace> FindUpdates(const Schedule& schedule) {
  std::vector<UpdatePlace> updates(static_cast<size_t>(schedule.placed_stages()));
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    const auto& body = schedule.body[static_cast<size_t>(rank)];
    for (size_t i = 0; i < body.size(); ++i) {
      if (body[i].kind != ActionKind::kUpdate) continue;
      updates[body[i].stage] = {rank, static_cast<int>(i), body[i].microbatch};
    }
  }
  return updates;
}

int DelayOfLatest(const Schedule& schedule, const UpdatePlace& update, int position) {
  const Action& action =
      schedule.body[static_cast<size_t>(update.rank)][static_cast<size_t>(position)];
  const auto shift = static_cast<int>(schedule.ShiftOf(action));
  return shift - update.shift - (update.position < position ? 1 : 0);
}

std::vector<int> BatchDelays(const Schedule& schedule, const std::vector<UpdatePlace>& updates) {
  const auto placed = static_cast<size_t>(schedule.placed_stages());
  if (schedule.policy == WeightPolicy::kDoubleBuffered) return std::vector<int>(placed, 1);
  if (EachActionHasItsOwn(schedule.policy)) return std::vector<int>(placed, 0);
  // The batch's first F has seen the fewest updates, so its delay is the greatest of all its F.
  std::vector<int> delays(placed, 0);
  for (size_t rank = 0; rank < schedule.body.size(); ++rank) {
    const auto& body = schedule.body[rank];
    for (size_t i = 0; i < body.size(); ++i) {
      if (!IsForward(body[i].kind)) continue;
      int& delay = delays[body[i].stage];
      delay = std::max(delay, DelayOfLatest(schedule, updates[body[i].stage], static_cast<int>(i)));
    }
  }
  if (schedule.policy == WeightPolicy::kVerticalSync) {
    for (int s = 0; s < schedule.placed_stages(); ++s) {
      const int first = schedule.PlacedStage(schedule.StreamOf(s), 0);
      delays[static_cast<size_t>(s)] = delays[static_cast<size_t>(first)];
    }
  }
  return delays;
}

std::vector<StageVersions> DeriveVersions(const Schedule& schedule,
                                          const std::vector<UpdatePlace>& updates) {
  // Valid means that every action of a batch stands behind U(t − 1), which stands behind the batch
  // before: nothing is left to derive.
  if (schedule.flushes()) return std::vector<StageVersions>(schedule.placement.size());
  const std::vector<int> batch_delays = BatchDelays(schedule, updates);
  const bool own = EachActionHasItsOwn(schedule.policy);
  const auto placed = static_cast<size_t>(schedule.placed_stages());
  std::vector<StageVersions> result(placed);
  std::vector<Extent> extents(placed);
  for (StageVersions& versions : result) versions.gradient_delay_min = -1;

  for (size_t rank = 0; rank < schedule.body.size(); ++rank) {
    const auto& body = schedule.body[rank];
    for (size_t i = 0; i < body.size(); ++i) {
      const Action& action = body[i];
      if (!HasMicrobatch(action.kind)) continue;
      const size_t s = action.stage;
      const Place place{-static_cast<int>(schedule.ShiftOf(action)), static_cast<int>(i)};
      if (YieldsWeightGradient(action.kind)) {
        extents[s].first_gradient = std::min(extents[s].first_gradient, place);
      }
      if (action.kind == ActionKind::kBackwardWeight) continue;  // W reads no weights
      extents[s].last_reader = std::max(extents[s].last_reader, place);
      const int delay =
          own ? DelayOfLatest(schedule, updates[s], static_cast<int>(i)) : batch_delays[s];
      StageVersions& versions = result[s];
      if (IsForward(action.kind)) {
        versions.gradient_delay = std::max(versions.gradient_delay, delay);
        int& least = versions.gradient_delay_min;
        least = least < 0 ? delay : std::min(least, delay);
      } else {
        versions.backward_delay = std::max(versions.backward_delay, delay);
      }
    }
  }

  for (size_t s = 0; s < placed; ++s) {
    // All places are relative to one batch t; batch t + 1 is one block later.
    const UpdatePlace& update = updates[s];
    const Place u{-update.shift, update.position};
    const auto batches_before = [&](const Place& p) {  // greatest k: batch t + k has p before U(t)
      return u.block - p.block - (p.position < u.position ? 0 : 1);
    };
    StageVersions& versions = result[s];
    versions.gradient_buffers = std::max(0, batches_before(extents[s].first_gradient)) + 1;
    if (!own) {
      // Live beside the one that U(t) makes: versions whose last reader, batch version + d, is
      // after.
      const int delay = batch_delays[s];
      const int kept = std::max(0, delay - batches_before(extents[s].last_reader));
      versions.weight_versions = kept + 1;
    }
    if (schedule.policy == WeightPolicy::kDoubleBuffered) {
      versions.weight_versions = std::max(2, versions.weight_versions);
    }
  }
  return result;
}

}  // namespace pipelag
