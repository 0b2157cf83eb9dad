// What is asked of NCCL, and no more. NCCL itself stands behind it, in tests one that can be made
// to fail. Knows no lanes, ranks of a program or deadlines.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "runtime/device/stream.h"

namespace pipelag {

/// Of one rank of one communicator. Nothing here waits for another rank: what takes its time is
/// under way until Ready says that it is not. Used by one thread at a time; Ready and Abort by any.
class Communicator {
 public:
  Communicator() = default;
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  /// One half of a message to or from a rank of the communicator, its own included.
  struct Half {
    bool send = false;
    int peer = 0;
    void* buffer = nullptr;  ///< device memory; sends only read it
    size_t bytes = 0;
  };
  /// Enqueues one group: all of it goes on at once, and the stream with it once all of it is done.
  /// Halves to one peer meet in the order given, with as many bytes on either side. Only when
  /// Ready; until it is Ready again nothing may be given to the stream.
  virtual void Post(std::span<const Half> group, Stream stream) = 0;
  /// Whether the last call is through. Throws Error for a failure on any rank or on the way there,
  /// from then on.
  virtual bool Ready() = 0;
  /// Begins to take leave of the other ranks, after all work is done; Ready tells when all have.
  virtual void Finish() = 0;
  /// Ends whatever is under way, on the device too. Nothing may be asked of it afterwards.
  virtual void Abort() noexcept = 0;
};

class CollectiveLibrary {
 public:
  CollectiveLibrary() = default;
  virtual ~CollectiveLibrary() = default;
  CollectiveLibrary(const CollectiveLibrary&) = delete;
  CollectiveLibrary& operator=(const CollectiveLibrary&) = delete;

  /// Names a communicator: made by one of its ranks, given to the others.
  using Id = std::array<std::byte, 128>;

  virtual std::string name() const = 0;  ///< "NCCL 2.28.9"
  virtual Id NewId() = 0;
  /// Begins to join, on the calling thread's current device; Ready tells when all ranks have.
  virtual std::unique_ptr<Communicator> Join(const Id& id, int size, int rank) = 0;
};

}  // namespace pipelag
