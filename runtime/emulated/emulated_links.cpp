#include "runtime/emulated/emulated_links.h"

#include <algorithm>
#include <deque>
#include <map>
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

/// A reduction as its members see it: ready when the last of them is, who may be told of it by
/// others while they look.
class Reduction {
 public:
  /// A member comes, whose reduction before this one, if any, is `before`.
  void Join(Nanoseconds ready, std::shared_ptr<const Reduction> before) {
    const std::lock_guard lock(mutex_);
    ready_ = std::max(ready_, ready);
    if (before) before_.push_back(std::move(before));
  }
  /// Once all members have come.
  Interval When(Nanoseconds takes) const {
    const std::lock_guard lock(mutex_);
    Nanoseconds start = ready_;
    for (const auto& before : before_) start = std::max(start, before->When(takes).end);
    before_.clear();  // what it said stands in ready_ from now on
    ready_ = start;
    return {start, start + takes};
  }

 private:
  mutable std::mutex mutex_;
  mutable Nanoseconds ready_{0};
  mutable std::vector<std::shared_ptr<const Reduction>> before_;
};

class ReductionEvent : public Event {
 public:
  ReductionEvent(EventPtr met, std::shared_ptr<const Reduction> reduction, Nanoseconds takes)
      : met_(std::move(met)), reduction_(std::move(reduction)), takes_(takes) {}
  bool Happened() const override { return met_->Happened(); }
  void Wait() const override { met_->Wait(); }
  Interval When() const override { return reduction_->When(takes_); }

 private:
  EventPtr met_;
  std::shared_ptr<const Reduction> reduction_;
  Nanoseconds takes_;
};

/// Of one group, those that not all ends have joined yet.
struct Reductions {
  std::mutex mutex;
  std::map<int64_t, std::weak_ptr<Reduction>> open;  // by number
};

}  // namespace

struct EmulatedLinks::State {
  State(size_t lanes, size_t groups, const Times& given)
      : wires(lanes), reductions(groups), times(given) {}

  std::vector<Wire> wires;
  std::vector<Reductions> reductions;
  Times times;
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
      return std::make_shared<DeliveryEvent>(inner_.Post(transfer, {}), sent, state_.times.latency);
    }
    Nanoseconds start = wire.free;
    for (const EventPtr& event : after) start = std::max(start, event->When().end);
    wire.free = start + state_.times.message;
    *sent = {start, wire.free};
    return std::make_shared<LinkEvent>(inner_.Post(transfer, {}), sent);
  }
  EventPtr PostGradientSum(int group, const std::vector<GradientPart>& parts,
                           std::span<const EventPtr> after) override {
    Nanoseconds ready{0};
    for (const EventPtr& event : after) {
      event->Wait();
      ready = std::max(ready, event->When().end);
    }
    const std::shared_ptr<Reduction> reduction = NextOf(group);
    reduction->Join(ready, std::move(last_reduction_));
    last_reduction_ = reduction;
    return std::make_shared<ReductionEvent>(inner_.PostGradientSum(group, parts, {}), reduction,
                                            state_.times.reduction);
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

  /// The one that other members of the group have joined, or will.
  std::shared_ptr<Reduction> NextOf(int group) {
    Reductions& of_group = state_.reductions[static_cast<size_t>(group)];
    const std::lock_guard lock(of_group.mutex);
    const int64_t number = posted_[group]++;
    std::shared_ptr<Reduction> reduction = of_group.open[number].lock();
    if (!reduction) of_group.open[number] = reduction = std::make_shared<Reduction>();
    std::erase_if(of_group.open, [](const auto& entry) { return entry.second.expired(); });
    return reduction;
  }

  EmulatedLinks::State& state_;
  Transport& inner_;
  std::map<int, int64_t> posted_;  // by group
  std::shared_ptr<const Reduction> last_reduction_;
};

}  // namespace

EmulatedLinks::EmulatedLinks(size_t lanes, size_t groups, const Times& times)
    : state_(std::make_unique<State>(lanes, groups, times)) {}

EmulatedLinks::~EmulatedLinks() = default;

std::unique_ptr<Transport> EmulatedLinks::End(Transport& inner) {
  return std::make_unique<LinkEnd>(*state_, inner);
}

}  // namespace pipelag
