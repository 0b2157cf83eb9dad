// Flows over the channels of a cluster, which share bandwidth max-min fairly. Knows nothing of who
// sends what, nor of latency, which occupies nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "models/cluster.h"
#include "sim/event_queue.h"
#include "sim/rate.h"

namespace pipelag {

/// Rates are found by progressive filling: every flow's rate grows until a channel on its way is
/// full. They are exact fractions (see Rate). What is left of a flow is held in byte·ns/s, 10^9 to
/// the byte, and progress is rounded up to a whole one whenever a rate changes. Ends fall on whole
/// nanoseconds, rounded up: a flow whose rate never changes ends at exactly ⌈bytes ÷ rate⌉; of
/// others only the fraction of a nanosecond is lost for which each flow that shared with it
/// outlived its last byte.
class Network {
 public:
  /// Ends of flows enter `events` as `end_kind`, the flow as subject.
  Network(const std::vector<Bandwidth>& channels, EventQueue& events, unsigned end_kind);

  /// A new flow; rates take effect at the next Settle. `route` must outlive it, must have a
  /// channel, all of limited bandwidth; bytes > 0. Numbers of ended flows are used again.
  int Start(const std::vector<int>& route, Bytes bytes, int64_t now);
  /// Whether an end event still stands: the flow was not re-timed since.
  bool Stands(const QueuedEvent& event) const {
    return flows_[static_cast<size_t>(event.subject)].generation == event.generation;
  }
  void End(int flow);
  /// Shares the bandwidth anew where flows came or went. Call once all of an instant's events are
  /// done: what happens within one instant moves no byte.
  void Settle(int64_t now);
  bool settled() const { return dirty_.empty(); }
  /// Whether any flow so far had less than the narrowest channel of its way for itself.
  bool slowed() const { return slowed_; }

 private:
  struct Flow {
    const std::vector<int>* route = nullptr;
    Wide left = 0;
    Rate rate;
    Rate next;
    int64_t since = 0;  ///< when `left` was true
    uint64_t seen = 0;
    uint32_t generation = 0;
    bool fixed = false;
    bool active = false;
  };
  struct Channel {
    Rate capacity;
    Rate free;
    std::vector<int> flows;
    int64_t unfixed = 0;
    uint64_t seen = 0;
    bool dirty = false;
  };

  void MarkRoute(const std::vector<int>& route);
  Rate Alone(const Flow& flow) const;
  void Gather(int channel);
  void Fill();
  void Retime(int flow, int64_t now);

  EventQueue& events_;
  unsigned end_kind_;
  std::vector<Flow> flows_;
  std::vector<int> unused_;
  std::vector<Channel> channels_;
  std::vector<int> dirty_;
  uint64_t visit_ = 0;
  bool slowed_ = false;
  std::vector<int> near_channels_;  ///< of the part that is shared anew
  std::vector<int> near_flows_;
};

}  // namespace pipelag
