// Actions on the cores of one machine, which share them evenly: of n on c cores each goes on at the
// rate min(1, c/n) (processor sharing). Knows nothing of what an action is, nor whom it keeps
// waiting.
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "sim/event_queue.h"
#include "sim/rate.h"

namespace pipelag {

/// Ends fall on whole nanoseconds, rounded up: what is left of an action's last nanosecond nobody
/// else has. Progress is exact while no more than 24 actions go on at once; else it is rounded up,
/// to the 5354228880th of a nanosecond, whenever one comes or goes.
class SharedCores {
 public:
  /// The next end enters `events` as `end_kind`, the rank as subject. At least one core.
  SharedCores(int64_t cores, EventQueue& events, unsigned end_kind)
      : cores_(cores), events_(events), end_kind_(end_kind) {}

  /// What takes `takes` > 0 on a core of its own, on a rank that does nothing else meanwhile.
  void Start(int rank, int64_t takes, int64_t now);
  /// Whether an end event still stands: nothing came or went since it entered.
  bool Stands(const QueuedEvent& event) const { return event.generation == generation_; }
  /// Ends what an event that stands is about.
  void End(int64_t now);

 private:
  using Running = std::pair<Wide, int>;  // the progress at which it ends, and its rank

  int64_t running() const { return static_cast<int64_t>(running_.size()); }
  Wide UnitsPerNanosecond() const;
  void Advance(int64_t now);
  void ScheduleNextEnd(int64_t now);

  int64_t cores_;
  EventQueue& events_;
  unsigned end_kind_;
  std::priority_queue<Running, std::vector<Running>, std::greater<>> running_;
  Wide progress_ = 0;  // of an action that had been running from the beginning
  int64_t since_ = 0;  // when it was true
  uint32_t generation_ = 0;
};

}  // namespace pipelag
