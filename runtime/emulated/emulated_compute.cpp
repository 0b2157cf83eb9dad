#include "runtime/emulated/emulated_compute.h"

#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <thread>

#include "runtime/past_event.h"

namespace pipelag {
namespace {

/// Of the calling thread. Neither is needed, so a system that does not permit it need not.
void WakeOnTime() {
  // The kernel may put off a wake-up by as much as this, by default 50 us.
  static_cast<void>(prctl(PR_SET_TIMERSLACK, 1UL));
  sched_param lowest{};
  lowest.sched_priority = sched_get_priority_min(SCHED_RR);
  static_cast<void>(pthread_setschedparam(pthread_self(), SCHED_RR, &lowest));
}

}  // namespace

/// Wakes the one thread that uses it.
class EmulatedCompute::Alarm {
 public:
  explicit Alarm(const RunControl& control) : control_(control) {}

  Nanoseconds Now() const { return control_.Now(); }

  /// The system wakes a sleeper late by tens of microseconds, so the rest is watched: as little of
  /// it as makes every other one of them punctual here, since that keeps a core busy.
  void SleepUntil(Nanoseconds end) {
    const Nanoseconds wake = end - watched_;
    Nanoseconds now = Now();
    if (now < wake) {
      while (now < wake) {
        std::this_thread::sleep_for(std::min(wake - now, kLongestSleep));
        control_.CheckRunning();
        now = Now();
      }
      watched_ = std::clamp(watched_ + (now > end ? kStep : -kStep), Nanoseconds{0}, kLongestWatch);
    }
    while (now < end) now = Now();
  }

 private:
  /// A stopped run must not wait for the end of a long action.
  static constexpr Nanoseconds kLongestSleep = std::chrono::milliseconds(20);
  static constexpr Nanoseconds kLongestWatch = std::chrono::microseconds(100);
  static constexpr Nanoseconds kStep = std::chrono::microseconds(1);

  const RunControl& control_;
  Nanoseconds watched_ = std::chrono::microseconds(40);
};

/// Happens when the clock says so.
class EmulatedCompute::TimedEvent : public Event {
 public:
  TimedEvent(Alarm& alarm, Interval when) : alarm_(alarm), when_(when) {}
  bool Happened() const override { return alarm_.Now() >= when_.end; }
  void Wait() const override { alarm_.SleepUntil(when_.end); }
  Interval When() const override { return when_; }

 private:
  Alarm& alarm_;
  Interval when_;
};

EmulatedCompute::EmulatedCompute(const RankPlan& plan, const Costs& costs,
                                 const RunControl& control)
    : plan_(plan),
      costs_(costs),
      control_(control),
      alarm_(std::make_unique<Alarm>(control)),
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

EmulatedCompute::~EmulatedCompute() = default;

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
  lane_free_ = start + DurationOf(task.action);
  return std::make_shared<TimedEvent>(*alarm_, Interval{start, lane_free_});
}

Nanoseconds EmulatedCompute::DurationOf(const RunAction& action) const {
  const auto stage = std::find_if(plan_.stages.begin(), plan_.stages.end(),
                                  [&](const StagePlan& s) { return s.stage == action.stage; });
  CHECK(stage != plan_.stages.end());
  return costs_.Of(action.kind, stage->slice);
}

}  // namespace pipelag
