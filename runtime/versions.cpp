#include "runtime/versions.h"

#include <algorithm>
#include <limits>

namespace pipelag {
namespace {

constexpr int64_t kNothing = std::numeric_limits<int64_t>::min();

}  // namespace

VersionTable::VersionTable(const Program& program, int stage, int history, int buffers)
    : in_place_(program.schedule().policy == WeightPolicy::kLatest || program.schedule().flushes()),
      flushes_(program.schedule().flushes()),
      oldest_(-history),
      steps_(program.steps()),
      contents_(static_cast<size_t>(buffers), kNothing) {
  CHECK(history >= 0 && buffers > history);
  CountReaders(program, stage);
  for (int buffer = buffers - 1; buffer > history; --buffer) free_.push_back(buffer);
  for (int age = history; age >= 0; --age) {
    live_.push_back({-age, age, ReadersOf(-age)});
    contents_[static_cast<size_t>(age)] = -age;
  }
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

/// Of the batches of the run; the oldest version serves all that would read an older one.
int64_t VersionTable::ReadersOf(int64_t version) const {
  int64_t count = 0;
  for (const Readers& readers : readers_) {
    const int64_t last = std::min(version + readers.delay, steps_ - 1);
    const int64_t first = version == oldest_ ? 0 : std::max<int64_t>(0, version + readers.delay);
    count += std::max<int64_t>(0, last - first + 1) * readers.count;
  }
  return count;
}

int VersionTable::BufferOf(int64_t version) const {
  if (in_place_ && version >= 0) return 0;
  for (const Live& live : live_) {
    if (live.version == version) return live.buffer;
  }
  CHECK(false);
}

int VersionTable::BufferTakenAt(int64_t batch) const {
  if (in_place_) return flushes_ ? 0 : -1;
  const auto found = std::find(contents_.begin(), contents_.end(),
                               std::max(oldest_, batch - readers_.front().delay));
  return found == contents_.end() ? -1 : static_cast<int>(found - contents_.begin());
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
