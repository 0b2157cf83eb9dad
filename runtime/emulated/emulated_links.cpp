#include "runtime/emulated/emulated_links.h"

#include <algorithm>
#include <deque>
#include <mutex>
#include <vector>

namespace pipelag {
namespace {

/// Halves of messages whose other half has not been posted yet share their times with it. Written
/// by the sender before the message can happen.
struct Wire {
  std::mutex mutex;
  std::deque<std::shared_ptr<Interval>> sends;
  std::deque<std::shared_ptr<Interval>> receives;
  Nanoseconds free{0};  // the sender's alone
};

class LinkEvent : public Event {
 public:
  LinkEvent(EventPtr inner, std::shared_ptr<const Interval> sent)
      : inner_(std::move(inner)), sent_(std::move(sent)) {}
  bool Happened() const override { return inner_->Happened(); }
  void Wait() const override { inner_->Wait(); }
  Interval When() const override { return *sent_; }

 protected:
  const EventPtr inner_;
  const std::shared_ptr<const Interval> sent_;
};

class DeliveryEvent : public LinkEvent {
 public:
  DeliveryEvent(EventPtr inner, std::shared_ptr<const Interval> sent, Nanoseconds latency)
      : LinkEvent(std::move(inner), std::move(sent)), latency_(latency) {}
  Interval When() const override {
    return {sent_->start, std::max(sent_->end + latency_, inner_->When().end)};
  }

 private:
  Nanoseconds latency_;
};

}  // namespace

struct EmulatedLinks::State {
  State(size_t lanes, Nanoseconds occupancy_of_message, Nanoseconds latency_of_link)
      : wires(lanes), occupancy(occupancy_of_message), latency(latency_of_link) {}

  std::vector<Wire> wires;
  Nanoseconds occupancy;
  Nanoseconds latency;
};

namespace {

class LinkEnd : public Transport {
 public:
  LinkEnd(EmulatedLinks::State& state, Transport& inner) : state_(state), inner_(inner) {}

  EventPtr Post(const Transfer& transfer, std::span<const EventPtr> after) override {
    for (const EventPtr& event : after) event->Wait();
    Wire& wire = state_.wires[static_cast<size_t>(transfer.lane)];
    const std::shared_ptr<Interval> sent = Match(wire, transfer.send);
    if (!transfer.send) {
      return std::make_shared<DeliveryEvent>(inner_.Post(transfer, {}), sent, state_.latency);
    }
    Nanoseconds start = wire.free;
    for (const EventPtr& event : after) start = std::max(start, event->When().end);
    wire.free = start + state_.occupancy;
    *sent = {start, wire.free};
    return std::make_shared<LinkEvent>(inner_.Post(transfer, {}), sent);
  }
  EventPtr PostGradientSum(int group, const std::vector<GradientPart>& parts,
                           std::span<const EventPtr> after) override {
    return inner_.PostGradientSum(group, parts, after);
  }
  EventPtr PostAllReduce(int group, std::span<double> values,
                         std::span<const EventPtr> after) override {
    return inner_.PostAllReduce(group, values, after);
  }

 private:
  static std::shared_ptr<Interval> Match(Wire& wire, bool send) {
    const std::lock_guard lock(wire.mutex);
    auto& mine = send ? wire.sends : wire.receives;
    auto& theirs = send ? wire.receives : wire.sends;
    if (theirs.empty()) return mine.emplace_back(std::make_shared<Interval>());
    const std::shared_ptr<Interval> other = std::move(theirs.front());
    theirs.pop_front();
    return other;
  }

  EmulatedLinks::State& state_;
  Transport& inner_;
};

}  // namespace

EmulatedLinks::EmulatedLinks(size_t lanes, Nanoseconds occupancy, Nanoseconds latency)
    : state_(std::make_unique<State>(lanes, occupancy, latency)) {}

EmulatedLinks::~EmulatedLinks() = default;

std::unique_ptr<Transport> EmulatedLinks::End(Transport& inner) {
  return std::make_unique<LinkEnd>(*state_, inner);
}

}  // namespace pipelag
