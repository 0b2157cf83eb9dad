#include "runtime/emulated/emulated_compute.h"

#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <ctime>
#include <thread>

#include "runtime/past_event.h"

namespace pipelag {
namespace {

/// A stopped run must not wait for the end of a long action.
constexpr Nanoseconds kLongestSleep = std::chrono::milliseconds(20);

/// Of the calling thread. Neither is needed, so a system that does not permit it need not. Who is
/// woken before others must not be busy then.
void WakeOnTime(EmulatedCompute::Way way) {
  // The kernel may put off a wake-up by as much as this, by default 50 us.
  static_cast<void>(prctl(PR_SET_TIMERSLACK, 1UL));
  if (way == EmulatedCompute::Way::kBusy) return;
  sched_param lowest{};
  lowest.sched_priority = sched_get_priority_min(SCHED_RR);
  static_cast<void>(pthread_setschedparam(pthread_self(), SCHED_RR, &lowest));
}

void SleepUntil(const RunControl& control, Nanoseconds end) {
  for (Nanoseconds now = control.Now(); now < end; now = control.Now()) {
    std::this_thread::sleep_for(std::min(end - now, kLongestSleep));
    control.CheckRunning();
  }
}

/// For how long the calling thread has had a core.
Nanoseconds TimeOnCore() {
  timespec time{};
  CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) == 0);
  return std::chrono::seconds(time.tv_sec) + Nanoseconds{time.tv_nsec};
}

void KeepCoreBusy(const RunControl& control, Nanoseconds takes) {
  const Nanoseconds end = TimeOnCore() + takes;
  while (TimeOnCore() < end) control.CheckRunning();
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
    if (Now() < wake) {
      pipelag::SleepUntil(control_, wake);
      const Nanoseconds step = Now() > end ? kStep : -kStep;
      watched_ = std::clamp(watched_ + step, Nanoseconds{0}, kLongestWatch);
    }
    while (Now() < end) {
    }
  }

 private:
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

EmulatedCompute::EmulatedCompute(const RankPlan& plan, const Costs& costs, Way way,
                                 const RunControl& control)
    : plan_(plan),
      costs_(costs),
      way_(way),
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
    WakeOnTime(way_);
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
  if (way_ == Way::kBusy) {
    SleepUntil(control_, start);  // messages are there before links deliver them
    KeepCoreBusy(control_, DurationOf(task.action));
    lane_free_ = control_.Now();
    return std::make_shared<PastEvent>(Interval{start, lane_free_});
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
