// All that go on at once make the same progress, so one figure tells it for all of them.
#include "sim/shared_cores.h"

#include <algorithm>

#include "models/error.h"

namespace pipelag {
namespace {

/// Of progress, per nanosecond on a core of one's own: divisible by all numbers up to 24.
constexpr int64_t kUnits = 5'354'228'880;

}  // namespace

void SharedCores::Start(int rank, int64_t takes, int64_t now) {
  CHECK(takes > 0);
  Advance(now);
  running_.emplace(progress_ + Wide{takes} * kUnits, rank);
  ScheduleNextEnd(now);
}

void SharedCores::End(int64_t now) {
  Advance(now);
  CHECK(running_.top().first <= progress_);
  running_.pop();
  ScheduleNextEnd(now);
}

/// What all that are running get together.
Wide SharedCores::UnitsPerNanosecond() const { return Wide{kUnits} * std::min(running(), cores_); }

void SharedCores::Advance(int64_t now) {
  if (running() > 0) progress_ += CeilDiv(UnitsPerNanosecond() * (now - since_), running());
  since_ = now;
}

void SharedCores::ScheduleNextEnd(int64_t now) {
  ++generation_;
  if (running() == 0) return;
  const auto& [end, rank] = running_.top();
  const Wide left = std::max(end - progress_, Wide{0});
  const Wide takes = CeilDiv(left * running(), UnitsPerNanosecond());
  if (takes > INT64_MAX - now) throw Error("an action would take longer than 292 years");
  events_.Push(now + static_cast<int64_t>(takes), end_kind_, rank, generation_);
}

}  // namespace pipelag
