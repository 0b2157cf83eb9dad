// Where the lanes, ranks and reductions of a run that shares things stand at one instant. Knows
// nothing of what happens next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "models/schedule/program.h"

namespace pipelag::contended {

struct Message {
  int64_t ready = 0;
  RunAction action;
};
/// First in, first out, in one block of memory.
struct Messages {
  std::vector<Message> items;
  size_t next = 0;

  bool empty() const { return next == items.size(); }
  void Push(const Message& message) { items.push_back(message); }
  Message Pop() {
    const Message first = items[next++];
    if (next == items.size() || next == 64) {
      items.erase(items.begin(), items.begin() + static_cast<std::ptrdiff_t>(next));
      next = 0;
    }
    return first;
  }
};
struct LaneState {
  Messages pending;  // produced, not yet under way
  Messages on_their_way;
  Message sending;
  int64_t start = 0;
  int64_t sent = 0;
  int64_t released = 0;
  bool busy = false;
};
struct RankState {
  LaneWalk walk;        // compute lane
  LaneWalk reductions;  // reduce lane: stands on its next AR
  RunAction running;
  RunAction other_half;  // of an OVERLAP
  int64_t free = 0;
  int64_t start = 0;  // of what is running
  bool busy = false;
  bool overlapped = false;
  bool reducing = false;
};
struct Reduction {
  int64_t gradients = 0;  // still missing
  int64_t updates = 0;    // still to read `ended`
  bool ended = false;
};
struct Running {
  int64_t start = 0;
  int64_t step = 0;
  size_t round = 0;
  int repeat = 0;
  int missing = 0;  // messages of the round
};
struct FlowOwner {
  bool collective = false;
  int index = 0;  // lane or collective
  int64_t latency = 0;
};

}  // namespace pipelag::contended
