#include "runtime/versions.h"

#include <algorithm>

namespace pipelag {

VersionTable::VersionTable(const Program& program, int stage, int history, int buffers)
    : in_place_(program.schedule().policy == WeightPolicy::kLatest || program.schedule().flushes()),
      flushes_(program.schedule().flushes()),
      buffers_(buffers),
      oldest_(-history),
      steps_(program.steps()) {
  CHECK(history >= 0 && buffers > history);
  CountReaders(program, stage);
  for (int age = history; age >= 0; --age) live_.push_back({-age, ReadersOf(-age)});
  peak_ = static_cast<int>(live_.size());
  DropDead();
}

void VersionTable::CountReaders(const Program& program, int stage) {
  const Schedule& schedule = program.schedule();
  const auto& body =
      schedule.body[static_cast<size_t>(schedule.placement[static_cast<size_t>(stage)])];
  for (size_t i = 0; i < body.size(); ++i) {
    const Action& action = body[i];
    if (action.stage != stage || !HasMicrobatch(action.kind)) continue;
    if (action.kind == ActionKind::kBackwardWeight) continue;
    const int delay = program.ReadDelay(stage, static_cast<int>(i));
    const auto found = std::find_if(readers_.begin(), readers_.end(),
                                    [&](const Readers& readers) { return readers.delay == delay; });
    if (found == readers_.end()) {
      readers_.push_back({delay, 1});
    } else {
      ++found->count;
    }
  }
}

/// Of the batches of the run; the oldest version serves all that would read an older one. One that
/// is overwritten in place waits for nobody.
int64_t VersionTable::ReadersOf(int64_t version) const {
  if (in_place_ && version >= 0) return 0;
  int64_t count = 0;
  for (const Readers& readers : readers_) {
    const int64_t last = std::min(version + readers.delay, steps_ - 1);
    const int64_t first = version == oldest_ ? 0 : std::max<int64_t>(0, version + readers.delay);
    count += std::max<int64_t>(0, last - first + 1) * readers.count;
  }
  return count;
}

int VersionTable::Place(int64_t version) const {
  if (in_place_ && version >= 0) return 0;
  return static_cast<int>(FloorMod(-version, buffers_));
}

int VersionTable::BufferOf(int64_t version) const {
  const auto is_it = [&](const Live& live) { return live.version == version; };
  CHECK((in_place_ && version >= 0) || std::any_of(live_.begin(), live_.end(), is_it));
  return Place(version);
}

int VersionTable::BufferTakenAt(int64_t batch) const {
  if (in_place_) return flushes_ ? 0 : -1;
  const int64_t version = std::max(oldest_, batch - readers_.front().delay);
  return version > newest_ - buffers_ ? Place(version) : -1;
}

void VersionTable::Read(int64_t version) {
  if (in_place_ && version >= 0) return;
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
  std::erase_if(live_,
                [&](const Live& live) { return live.readers <= 0 && live.version != newest_; });
}

VersionTable::Target VersionTable::Advance() {
  const int source = Place(newest_);
  ++newest_;
  DropDead();
  const int target = Place(newest_);
  for (const Live& live : live_) CHECK(Place(live.version) != target);
  live_.push_back({newest_, ReadersOf(newest_)});
  peak_ = std::max(peak_, static_cast<int>(live_.size()));
  return {source, target};
}

}  // namespace pipelag
