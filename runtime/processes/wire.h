// What a run needs of whatever joins its processes, be it MPI or sockets, and no more. Knows no
// schedule and no events.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "models/error.h"

namespace pipelag {

/// A peer can no longer be reached.
class PeerGone : public Error {
 public:
  /// `how`: "is gone: its connection was closed".
  PeerGone(int peer, const std::string& how)
      : Error("rank " + std::to_string(peer) + ' ' + how), peer_(peer), how_(how) {}
  int peer() const { return peer_; }
  const std::string& how() const { return how_; }

 private:
  int peer_;
  std::string how_;
};

/// Used by one thread at a time. Messages of one sender, receiver and tag meet in the order in
/// which they are posted; both sides give the same size. Tags are from 0 to 32767.
class Wire {
 public:
  using Handle = int64_t;

  virtual ~Wire() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string name() const = 0;  ///< "MPI", "sockets"
  /// Never wait for the other side. The buffer is the caller's and stays until Done or the end of
  /// the wire. Throw PeerGone if the peer is known to be.
  virtual Handle Send(int peer, int tag, std::span<const std::byte> bytes) = 0;
  virtual Handle Receive(int peer, int tag, std::span<std::byte> bytes) = 0;
  /// Moves what can be moved without blocking. True once for every handle: then it is forgotten.
  /// Throws PeerGone if the peer is, so that it can never be.
  virtual bool Done(Handle handle) = 0;
  /// The processes end together, none of them well: what is under way is given up.
  virtual void Abandon() = 0;
};

/// How the launcher of this process says which of how many it is.
struct Launched {
  enum class By : uint8_t { kNobody, kMpi, kVariables };
  By by = By::kNobody;
  int rank = 0;
  int size = 1;
  std::string host;  ///< kVariables: where rank 0 is
  int port = 0;
  std::string file = {};  ///< in place of host and port: where rank 0 says where it is
};

/// mpirun's and srun's own variables come first, then torchrun's RANK, WORLD_SIZE, MASTER_ADDR and
/// MASTER_PORT; srun without MPI has SLURM_PROCID and SLURM_NTASKS for the first two. The port is
/// the one after MASTER_PORT, which a launcher's own store may hold, or PIPELAG_PORT.
/// PIPELAG_RENDEZVOUS names a file on a disk that all share, in place of the last two. Throws Error
/// naming the variable that is missing or wrong.
Launched HowLaunched();

/// Joins the processes. Throws Error if that has not come about within the time given, saying who
/// is missing.
std::unique_ptr<Wire> OpenWire(const Launched& launched, std::chrono::seconds patience);

}  // namespace pipelag
