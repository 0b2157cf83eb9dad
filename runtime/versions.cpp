#include "runtime/versions.h"

#include <algorithm>

namespace pipelag {

VersionTable::VersionTable(const Program& program, int stage)
    : in_place_(program.schedule().policy == WeightPolicy::kLatest || program.schedule().flushes()),
      flushes_(program.schedule().flushes()),
      steps_(program.steps()) {
  const Schedule& schedule = program.schedule();
  const auto& body =
      schedule.body[static_cast<size_t>(schedule.placement[static_cast<size_t>(stage)])];
  for (size_t i = 0; i < body.size(); ++i) {
    const Action& action = body[i];
    if (action.stage != stage || !HasMicrobatch(action.kind)) continue;
    if (action.kind == ActionKind::kBackwardWeight) continue;
    ++readers_per_batch_;
    if (!in_place_) delay_ = program.ReadDelay(stage, static_cast<int>(i));
  }
  live_.push_back({0, 0, ReadersOf(0)});
  contents_.assign(static_cast<size_t>(program.versions(stage).weight_versions), -1);
  contents_[0] = 0;
  for (int buffer = program.versions(stage).weight_versions - 1; buffer > 0; --buffer) {
    free_.push_back(buffer);
  }
}

/// Batches that read it, clipped to those of the run: version 0 serves all up to the delay.
int64_t VersionTable::ReadersOf(int64_t version) const {
  const int64_t last = std::min(version + delay_, steps_ - 1);
  const int64_t first = version == 0 ? 0 : version + delay_;
  return std::max<int64_t>(0, last - first + 1) * readers_per_batch_;
}

int VersionTable::BufferOf(int64_t version) const {
  if (in_place_) return 0;
  for (const Live& live : live_) {
    if (live.version == version) return live.buffer;
  }
  CHECK(false);
}

int VersionTable::BufferTakenAt(int64_t batch) const {
  if (in_place_) return flushes_ ? 0 : -1;
  const auto found =
      std::find(contents_.begin(), contents_.end(), std::max<int64_t>(0, batch - delay_));
  return found == contents_.end() ? -1 : static_cast<int>(found - contents_.begin());
}

void VersionTable::Read(int64_t version) {
  if (in_place_) return;
  for (Live& live : live_) {
    if (live.version == version) {
      CHECK(live.readers > 0);
      --live.readers;
    }
  }
  DropDead();
}

/// The newest stays even without readers: the next update starts from it.
void VersionTable::DropDead() {
  std::erase_if(live_, [&](const Live& live) {
    if (live.readers > 0 || live.version == newest_) return false;
    free_.push_back(live.buffer);
    return true;
  });
}

VersionTable::Target VersionTable::Advance() {
  const int64_t next = newest_ + 1;
  Live& newest = live_.back();
  const int source = newest.buffer;
  newest_ = next;
  if (in_place_ || newest.readers == 0) {
    newest = {next, source, ReadersOf(next)};
    contents_[static_cast<size_t>(source)] = next;
    return {source, source};
  }
  CHECK(!free_.empty());
  const int target = free_.back();
  free_.pop_back();
  live_.push_back({next, target, ReadersOf(next)});
  contents_[static_cast<size_t>(target)] = next;
  peak_ = std::max(peak_, static_cast<int>(live_.size()));
  DropDead();
  return {source, target};
}

}  // namespace pipelag
