#include "runtime/emulated/emulated_compute.h"

#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <thread>

#include "runtime/past_event.h"

namespace pipelag {
namespace {

/// The system wakes a sleeper late by tens of microseconds, so the rest is watched: short enough
/// that a rank with actions of 10 ms keeps a core busy for less than half a percent of the time.
constexpr Nanoseconds kWatched = std::chrono::microseconds(40);
/// A stopped run must not wait for the end of a long action.
constexpr Nanoseconds kLongestSleep = std::chrono::milliseconds(20);

/// Of the calling thread. Neither is needed, so a system that does not permit it need not.
void WakeOnTime() {
  // The kernel may put off a wake-up by as much as this, by default 50 us.
  static_cast<void>(prctl(PR_SET_TIMERSLACK, 1UL));
  sched_param lowest{};
  lowest.sched_priority = sched_get_priority_min(SCHED_RR);
  static_cast<void>(pthread_setschedparam(pthread_self(), SCHED_RR, &lowest));
}

}  // namespace

EmulatedCompute::EmulatedCompute(const RankPlan& plan, const Costs& costs,
                                 const RunControl& control)
    : plan_(plan),
      costs_(costs),
      control_(control),
      message_bytes_(static_cast<size_t>(std::max<Bytes>(costs.activation_bytes, 1))) {
  size_t buffers = 0;
  for (const MessagePlan& planned : plan.messages) {
    buffers += static_cast<size_t>(planned.buffers);
  }
  arena_ = std::make_unique<Arena>(buffers * Arena::Rounded(message_bytes_));
  for (const MessagePlan& planned : plan.messages) {
    auto& [lane, of_lane] = messages_.emplace_back(planned.lane, std::vector<std::byte*>());
    for (int k = 0; k < planned.buffers; ++k) of_lane.push_back(arena_->Take(message_bytes_));
  }
}

std::byte* EmulatedCompute::MessageBuffer(int lane, int index) {
  for (const auto& [number, buffers] : messages_) {
    if (number == lane) return buffers[static_cast<size_t>(index)];
  }
  CHECK(false);
}

std::span<float> EmulatedCompute::GradientBuffer(int, int) { return {}; }

std::span<float> EmulatedCompute::SharedGradient(int, int) { return {}; }

EventPtr EmulatedCompute::Start(const ComputeTask& task, std::span<const EventPtr> after) {
  if (!started_) {
    WakeOnTime();
    lane_free_ = control_.Now();
    started_ = true;
  }
  Nanoseconds start = lane_free_;
  for (const EventPtr& event : after) {
    event->Wait();
    start = std::max(start, event->When().end);
  }
  control_.CheckRunning();
  if (task.action.kind == ActionKind::kAllReduce) {
    return std::make_shared<PastEvent>(Interval{start, start});
  }
  const Nanoseconds duration = DurationOf(task.action);
  const bool over = duration.count() == 0 && start <= control_.Now();
  lane_free_ = over ? start : SleepUntil(start + duration);
  return std::make_shared<PastEvent>(Interval{start, lane_free_});
}

Nanoseconds EmulatedCompute::DurationOf(const RunAction& action) const {
  const auto stage = std::find_if(plan_.stages.begin(), plan_.stages.end(),
                                  [&](const StagePlan& s) { return s.stage == action.stage; });
  CHECK(stage != plan_.stages.end());
  return costs_.Of(action.kind, stage->slice);
}

/// When it woke.
Nanoseconds EmulatedCompute::SleepUntil(Nanoseconds end) const {
  for (;;) {
    const Nanoseconds left = end - control_.Now();
    if (left <= kWatched) break;
    std::this_thread::sleep_for(std::min(left - kWatched, kLongestSleep));
    control_.CheckRunning();
  }
  Nanoseconds now = control_.Now();
  while (now < end) now = control_.Now();
  return now;
}

}  // namespace pipelag
