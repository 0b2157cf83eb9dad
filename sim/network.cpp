// Max-min fair sharing by progressive filling, of only those flows that a change can reach.
#include "sim/network.h"

#include <algorithm>

#include "models/error.h"

namespace pipelag {
namespace {

constexpr Wide kUnitsPerByte = 1'000'000'000;

}  // namespace

Network::Network(const std::vector<Bandwidth>& channels, EventQueue& events, unsigned end_kind)
    : events_(events), end_kind_(end_kind), channels_(channels.size()) {
  for (size_t c = 0; c < channels.size(); ++c) {
    channels_[c].capacity = Rate(channels[c].bytes_per_second);
  }
}

int Network::Start(const std::vector<int>& route, Bytes bytes, int64_t now) {
  CHECK(!route.empty() && bytes > 0);
  int id = static_cast<int>(flows_.size());
  if (unused_.empty()) {
    flows_.emplace_back();
  } else {
    id = unused_.back();
    unused_.pop_back();
  }
  Flow& flow = flows_[static_cast<size_t>(id)];
  flow.route = &route;
  flow.left = Wide{bytes} * kUnitsPerByte;
  flow.rate = Rate();
  flow.since = now;
  flow.active = true;
  for (const int c : route) channels_[static_cast<size_t>(c)].flows.push_back(id);
  MarkRoute(route);
  return id;
}

void Network::End(int id) {
  Flow& flow = flows_[static_cast<size_t>(id)];
  CHECK(flow.active);
  for (const int c : *flow.route) {
    std::vector<int>& flows = channels_[static_cast<size_t>(c)].flows;
    flows.erase(std::find(flows.begin(), flows.end(), id));
  }
  MarkRoute(*flow.route);
  flow.active = false;
  ++flow.generation;
  unused_.push_back(id);
}

void Network::MarkRoute(const std::vector<int>& route) {
  for (const int c : route) {
    Channel& channel = channels_[static_cast<size_t>(c)];
    if (channel.dirty) continue;
    channel.dirty = true;
    dirty_.push_back(c);
  }
}

void Network::Settle(int64_t now) {
  ++visit_;
  for (const int c : dirty_) {
    channels_[static_cast<size_t>(c)].dirty = false;
    near_channels_.clear();
    near_flows_.clear();
    Gather(c);
    Fill();
    for (const int id : near_flows_) {
      const Flow& flow = flows_[static_cast<size_t>(id)];
      slowed_ = slowed_ || flow.next < Alone(flow);
      Retime(id, now);
    }
  }
  dirty_.clear();
}

/// Everything joined to a channel by flows that share channels.
void Network::Gather(int first) {
  const auto reach = [&](int c) {
    Channel& channel = channels_[static_cast<size_t>(c)];
    if (channel.seen == visit_) return;
    channel.seen = visit_;
    if (!channel.flows.empty()) near_channels_.push_back(c);
  };
  reach(first);
  for (size_t i = 0; i < near_channels_.size(); ++i) {
    for (const int id : channels_[static_cast<size_t>(near_channels_[i])].flows) {
      Flow& flow = flows_[static_cast<size_t>(id)];
      if (flow.seen == visit_) continue;
      flow.seen = visit_;
      flow.fixed = false;
      near_flows_.push_back(id);
      for (const int c : *flow.route) reach(c);
    }
  }
}

/// What a flow has where it shares with nobody: the narrowest channel of its way.
Rate Network::Alone(const Flow& flow) const {
  const auto narrower = [&](int a, int b) {
    return channels_[static_cast<size_t>(a)].capacity < channels_[static_cast<size_t>(b)].capacity;
  };
  const int narrowest = *std::min_element(flow.route->begin(), flow.route->end(), narrower);
  return channels_[static_cast<size_t>(narrowest)].capacity;
}

void Network::Fill() {
  if (near_flows_.size() == 1) {
    Flow& flow = flows_[static_cast<size_t>(near_flows_[0])];
    flow.next = Alone(flow);
    return;
  }
  for (const int c : near_channels_) {
    Channel& channel = channels_[static_cast<size_t>(c)];
    channel.free = channel.capacity;
    channel.unfixed = static_cast<int64_t>(channel.flows.size());
  }
  for (size_t fixed = 0; fixed < near_flows_.size();) {
    const Channel* full = nullptr;
    Rate share;
    for (const int c : near_channels_) {
      const Channel& channel = channels_[static_cast<size_t>(c)];
      if (channel.unfixed == 0) continue;
      const Rate each = channel.free.DividedBy(channel.unfixed);
      if (full != nullptr && !(each < share)) continue;
      full = &channel;
      share = each;
    }
    for (const int id : full->flows) {
      Flow& flow = flows_[static_cast<size_t>(id)];
      if (flow.fixed) continue;
      flow.fixed = true;
      flow.next = share;
      ++fixed;
      for (const int c : *flow.route) {
        Channel& channel = channels_[static_cast<size_t>(c)];
        channel.free = channel.free.Minus(share);
        --channel.unfixed;
      }
    }
  }
}

void Network::Retime(int id, int64_t now) {
  Flow& flow = flows_[static_cast<size_t>(id)];
  if (flow.next == flow.rate) return;
  if (flow.rate.numerator() > 0) {
    const Wide done = CeilDiv(flow.rate.numerator() * (now - flow.since), flow.rate.denominator());
    flow.left = std::max(flow.left - done, Wide{0});
  }
  flow.since = now;
  flow.rate = flow.next;
  ++flow.generation;
  CHECK(flow.rate.numerator() > 0);
  const Wide takes = CeilDiv(flow.left * flow.rate.denominator(), flow.rate.numerator());
  if (takes > INT64_MAX - now) throw Error("a transfer would take longer than 292 years");
  events_.Push(now + static_cast<int64_t>(takes), end_kind_, id, flow.generation);
}

}  // namespace pipelag
