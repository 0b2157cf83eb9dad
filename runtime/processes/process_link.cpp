#include "runtime/processes/process_link.h"

#include <fmt/format.h>

#include <atomic>
#include <optional>

#include "models/error.h"

namespace pipelag {
namespace {

/// A look costs some microseconds, so this is a few percent of a core at most.
constexpr std::chrono::microseconds kTick{100};
/// Between the looks of a rank that has waited for longer than its patience.
constexpr std::chrono::microseconds kNap{20};

}  // namespace

class WireEvent : public Event {
 public:
  WireEvent(ProcessLink& link, std::string waiting)
      : link_(link), waiting_(std::move(waiting)), start_(link.control_.Now()) {}

  bool Happened() const override { return happened_.load(std::memory_order_acquire); }
  void Wait() const override { link_.WaitFor(*this); }
  Interval When() const override {
    CHECK(Happened());
    return {start_, end_};
  }

  const std::string& waiting() const { return waiting_; }
  void Happen(Nanoseconds end) {
    end_ = end;
    happened_.store(true, std::memory_order_release);
  }

 private:
  ProcessLink& link_;
  std::string waiting_;
  Nanoseconds start_;
  Nanoseconds end_{0};
  std::atomic<bool> happened_{false};
};

ProcessLink::ProcessLink(Wire& wire, RunControl& control, Names names)
    : wire_(wire), control_(control), names_(std::move(names)) {
  ticking_ = std::jthread([this](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      std::this_thread::sleep_for(kTick);
      Progress();
    }
  });
}

ProcessLink::~ProcessLink() { Close(); }

std::string ProcessLink::NameOf(int rank) const {
  return names_ ? names_(rank) : fmt::format("rank {}", rank);
}

void ProcessLink::Close() {
  ticking_ = {};
  const std::lock_guard lock(mutex_);
  pending_.clear();
}

EventPtr ProcessLink::Send(int peer, int tag, std::span<const std::byte> bytes, std::string waiting,
                           std::shared_ptr<const void> owner) {
  Wire::Handle handle = 0;
  {
    const std::lock_guard lock(mutex_);
    handle = wire_.Send(peer, tag, bytes);
  }
  return Begin([handle, owner = std::move(owner)](Wire& wire) { return wire.Done(handle); },
               std::move(waiting));
}

EventPtr ProcessLink::SendIfThere(int peer, int tag, std::span<const std::byte> bytes,
                                  std::string waiting) {
  const auto handle = std::make_shared<std::optional<Wire::Handle>>();
  const auto advance = [=](Wire& wire) {
    try {
      if (!*handle) *handle = wire.Send(peer, tag, bytes);
      return wire.Done(**handle);
    } catch (const PeerGone&) {
      return true;
    }
  };
  return Begin(advance, std::move(waiting));
}

EventPtr ProcessLink::Receive(int peer, int tag, std::span<std::byte> bytes, std::string waiting,
                              std::shared_ptr<const void> owner) {
  Wire::Handle handle = 0;
  {
    const std::lock_guard lock(mutex_);
    handle = wire_.Receive(peer, tag, bytes);
  }
  return Begin([handle, owner = std::move(owner)](Wire& wire) { return wire.Done(handle); },
               std::move(waiting));
}

EventPtr ProcessLink::Begin(Advance advance, std::string waiting) {
  const auto event = std::make_shared<WireEvent>(*this, std::move(waiting));
  const std::lock_guard lock(mutex_);
  pending_.push_back({std::move(advance), event});
  return event;
}

void ProcessLink::Progress() {
  const std::lock_guard lock(mutex_);
  std::exception_ptr failure = MoveOn();
  // Whoever is gone may have said why before it went: that is heard first.
  if (failure && !control_.stopped()) failure = MoveOn();
  if (failure && !control_.stopped()) control_.Stop(failure);
}

std::exception_ptr ProcessLink::MoveOn() {
  std::exception_ptr failure;
  for (auto it = pending_.begin(); it != pending_.end();) {
    bool done = false;
    const auto fail = [&](const std::string& why) {
      const std::string place = Place();
      const std::string waiting = Waiting();
      failure = std::make_exception_ptr(
          Error(fmt::format("{}{}{}: {}", place, place.empty() ? "" : ": ",
                            waiting.empty() ? it->event->waiting() : waiting, why)));
    };
    try {
      done = it->advance(wire_);
    } catch (const PeerGone& gone) {
      fail(NameOf(gone.peer()) + ' ' + gone.how());
    } catch (const Error& error) {
      fail(error.what());
    }
    if (!done) {
      ++it;
      continue;
    }
    it->event->Happen(control_.Now());
    it = pending_.erase(it);
  }
  return failure;
}

void ProcessLink::WaitFor(const WireEvent& event) {
  if (event.Happened()) return;
  {
    const std::lock_guard lock(doing_mutex_);
    waiting_ = event.waiting();
  }
  const auto look = [&] {
    Progress();
    return event.Happened();
  };
  const bool came = control_.Look(look);
  for (const Nanoseconds since = control_.Now(); !came && !look();) {
    control_.CheckRunning();
    control_.CheckDeadline(since, event.waiting());
    std::this_thread::sleep_for(kNap);
  }
  const std::lock_guard lock(doing_mutex_);
  waiting_.clear();
}

void ProcessLink::SetPlace(std::string place) {
  const std::lock_guard lock(doing_mutex_);
  place_ = std::move(place);
}

std::string ProcessLink::Place() const {
  const std::lock_guard lock(doing_mutex_);
  return place_;
}

std::string ProcessLink::Waiting() const {
  const std::lock_guard lock(doing_mutex_);
  return waiting_;
}

}  // namespace pipelag
