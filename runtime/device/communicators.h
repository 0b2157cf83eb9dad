// The communicators of one rank in one run: joined and tried out in one order on all ranks, watched
// while the run lasts, ended together. Knows no lanes and groups, only their numbers.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runtime/device/collective_library.h"
#include "runtime/device/device_event.h"
#include "runtime/run_control.h"

namespace pipelag {

/// What the ranks of a run tell each other beside NCCL. May wait; throws as Event::Wait.
struct Rendezvous {
  /// Gives every rank of communicator `number` the name that the first of `ranks` got from `make`;
  /// called by all of them, each in ascending order of the numbers.
  std::function<CollectiveLibrary::Id(int number, const std::vector<int>& ranks,
                                      const std::function<CollectiveLibrary::Id()>& make)>
      share;
  /// Called once by every rank; returns when all have. Empty: there are no others.
  std::function<void(int rank)> meet;
};

/// Of ranks that are threads of one process; shared by them. Borrows the control.
Rendezvous AmongThreads(const RunControl& control, int ranks);

class Communicators {
 public:
  /// One to be joined. Two ranks as a rule: NCCL runs several halves to one peer in the order in
  /// which they were posted, so each lane has a communicator and a stream of its own, or a message
  /// of one lane would wait for one of another, in one order here and in another there.
  struct Member {
    int number = 0;
    std::vector<int> ranks;  ///< ascending; the own one among them, or alone
    std::string waiting;     ///< of whoever waits for it: "rank 0 waits for rank 1 to join …"
  };

  /// All is borrowed.
  Communicators(CollectiveLibrary& library, DeviceClock& clock, RunControl& control, int rank);
  /// Aborts what has not been closed.
  ~Communicators();
  Communicators(const Communicators&) = delete;
  Communicators& operator=(const Communicators&) = delete;

  /// By ascending number, all ranks at about the same time. Joins all, then sends a few bytes over
  /// each, one after the other and to every rank of it: connections are made with the first
  /// message, which must not be one that others wait for. From then on a thread looks at all of
  /// them and ends the run with the first failure. Returns when all ranks have come so far: what
  /// making a connection takes of a GPU, and of those that see its memory, is not to be had beside
  /// a receive that waits. Throws as Event::Wait does.
  void Open(const std::vector<Member>& members, const Rendezvous& others);
  /// Takes leave of the other ranks, after all work is done.
  void Close();

  /// The stream of a communicator; nothing else is given to it but what goes with its groups.
  const TimedStream& stream(int number) const { return channels_.at(number)->stream; }
  /// The own rank's number in it.
  int rank_in(int number) const { return channels_.at(number)->rank; }

  /// Enqueues a group, on the communicator's stream as a rule: on another one only if it is always
  /// the same. Throws RunStopped if the communicators have been aborted, and otherwise as
  /// Event::Wait does.
  void Post(int number, std::span<const Communicator::Half> group, Stream stream);
  /// The same on the communicator's own stream, of any number of halves: by_distance[d] are those
  /// with the ranks d behind and d ahead. In groups that are no larger than NCCL takes, split alike
  /// on all ranks: no rank has more than `most` halves with those at one distance.
  void PostByDistance(int number, const std::vector<std::vector<Communicator::Half>>& by_distance,
                      size_t most);

 private:
  struct Channel {
    explicit Channel(TimedStream of_channel) : stream(std::move(of_channel)) {}

    std::unique_ptr<Communicator> communicator;  // goes before its stream
    TimedStream stream;
    int rank = 0;
    int size = 1;
    std::string waiting;
    std::mutex mutex;
    bool ended = false;
  };

  bool Ready(Channel& channel);
  void WaitUntilReady(Channel& channel);
  void TryOut(int number, Channel& channel, const DeviceMemory& bytes);
  void Watch(const std::stop_token& stop);
  void AbortAll() noexcept;

  CollectiveLibrary& library_;
  DeviceClock& clock_;
  RunControl& control_;
  int rank_;
  std::map<int, std::unique_ptr<Channel>> channels_;
  std::jthread watching_;
};

}  // namespace pipelag
