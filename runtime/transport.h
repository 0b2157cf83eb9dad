// How buffers move between ranks: the other half of a backend. Independent of what is computed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "models/schedule/program.h"
#include "runtime/event.h"

namespace pipelag {

/// One half of a message. The k-th send and the k-th receive posted on a lane meet.
struct Transfer {
  int lane = 0;
  bool send = false;
  std::byte* buffer = nullptr;  ///< sends only read it
  size_t bytes = 0;
};

/// The gradients of one stage in a sum over its copies.
struct GradientPart {
  int stage = 0;  ///< placed stage
  std::span<float> values;
  double* squared_norm = nullptr;  ///< receives that of the sum; null: nobody asks
};

/// One rank's end of the transport. Posting never waits for the other rank. A rank's collectives
/// are done in the order in which it posts them (the reduce lane), so that one may sum what an
/// earlier one writes; members post those they share in one order. The event of a send
/// happens when its buffer may be overwritten, that of a receive when the buffer is filled; both
/// say when the message was under way.
class Transport {
 public:
  virtual ~Transport() = default;
  /// Called once before anything is posted, by all ranks at about the same time and on the thread
  /// that will post. May wait for the other ranks.
  virtual void Open() {}
  /// Called once when everything that was posted has happened, likewise. Not if the run failed.
  virtual void Close() {}
  virtual EventPtr Post(const Transfer& transfer, std::span<const EventPtr> after) = 0;
  /// Replaces the gradients of every member stage of the group by their sum. Those of one replica
  /// are added first, in ascending order of the stages: (first + second) + third; then the
  /// replicas' sums likewise. `parts`: those of this rank, ascending.
  virtual EventPtr PostGradientSum(int group, const std::vector<GradientPart>& parts,
                                   std::span<const EventPtr> after) = 0;
  /// Replaces `values`, in the memory of the rank's Compute, on every member rank of the group by
  /// their sum, added in rank order. All members have as many.
  virtual EventPtr PostAllReduce(int group, std::span<double> values,
                                 std::span<const EventPtr> after) = 0;
};

/// "rank 1 waits for rank 0 to send F number 2": whoever waits for a half of a message, the
/// `number`-th of its lane.
std::string WaitingForMessage(const Schedule& schedule, const Lane& lane, bool send,
                              int64_t number);
/// "rank 1 waits for rank 0 to take the norm".
std::string WaitingForGroup(const Schedule& schedule, int rank, int group);

}  // namespace pipelag
