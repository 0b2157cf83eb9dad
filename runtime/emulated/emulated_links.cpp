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

/// A collective as its members see it: it starts when the last of them is ready and done with the
/// one before.
class Collective {
 public:
  explicit Collective(Nanoseconds takes) : takes_(takes) {}

  /// A member comes, whose collective before this one, if any, is `before`.
  void Join(Nanoseconds ready, std::shared_ptr<const Collective> before) {
    const std::lock_guard lock(mutex_);
    ready_ = std::max(ready_, ready);
    if (before) before_.push_back(std::move(before));
  }
  /// Once all members have come.
  Interval When() const {
    const std::lock_guard lock(mutex_);
    for (const auto& before : before_) ready_ = std::max(ready_, before->When().end);
    before_.clear();
    return {ready_, ready_ + takes_};
  }

 private:
  Nanoseconds takes_;
  mutable std::mutex mutex_;
  mutable Nanoseconds ready_{0};
  mutable std::vector<std::shared_ptr<const Collective>> before_;
};

class CollectiveEvent : public Event {
 public:
  CollectiveEvent(EventPtr met, std::shared_ptr<const Collective> collective)
      : met_(std::move(met)), collective_(std::move(collective)) {}
  bool Happened() const override { return met_->Happened(); }
  void Wait() const override { met_->Wait(); }
  Interval When() const override { return collective_->When(); }

 private:
  EventPtr met_;
  std::shared_ptr<const Collective> collective_;
};

/// Of one group, those that not all ends have joined yet.
struct Collectives {
  std::mutex mutex;
  std::map<int64_t, std::weak_ptr<Collective>> open;  // by number
};

}  // namespace

struct EmulatedLinks::State {
  State(size_t lanes, size_t groups, const Times& given)
      : wires(lanes), collectives(groups), times(given) {}

  std::vector<Wire> wires;
  std::vector<Collectives> collectives;
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
    const std::shared_ptr<Collective> sum = Joined(group, state_.times.reduction, after);
    last_sum_ = sum;
    return std::make_shared<CollectiveEvent>(inner_.PostGradientSum(group, parts, {}), sum);
  }
  EventPtr PostAllReduce(int group, std::span<double> values,
                         std::span<const EventPtr> after) override {
    const std::shared_ptr<Collective> all = Joined(group, Nanoseconds{0}, after);
    return std::make_shared<CollectiveEvent>(inner_.PostAllReduce(group, values, {}), all);
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

  /// The group's next one for this rank, which other members have joined or will.
  std::shared_ptr<Collective> Joined(int group, Nanoseconds takes,
                                     std::span<const EventPtr> after) {
    Nanoseconds ready{0};
    for (const EventPtr& event : after) {
      event->Wait();
      ready = std::max(ready, event->When().end);
    }
    Collectives& of_group = state_.collectives[static_cast<size_t>(group)];
    std::shared_ptr<Collective> next;
    {
      const std::lock_guard lock(of_group.mutex);
      const int64_t number = posted_[group]++;
      next = of_group.open[number].lock();
      if (!next) of_group.open[number] = next = std::make_shared<Collective>(takes);
      std::erase_if(of_group.open, [](const auto& entry) { return entry.second.expired(); });
    }
    next->Join(ready, last_sum_);
    return next;
  }

  EmulatedLinks::State& state_;
  Transport& inner_;
  std::map<int, int64_t> posted_;  // by group
  std::shared_ptr<const Collective> last_sum_;
};

}  // namespace

EmulatedLinks::EmulatedLinks(size_t lanes, size_t groups, const Times& times)
    : state_(std::make_unique<State>(lanes, groups, times)) {}

EmulatedLinks::~EmulatedLinks() = default;

std::unique_ptr<Transport> EmulatedLinks::End(Transport& inner) {
  return std::make_unique<LinkEnd>(*state_, inner);
}

}  // namespace pipelag
