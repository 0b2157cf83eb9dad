// Messages over MPI. A shared object of its own, loaded when a launcher of MPI has started the
// process, so that everything else runs where there is no MPI.
#include "runtime/mpi/mpi_wire.h"

#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <map>
#include <vector>

#include "models/error.h"

namespace pipelag {
namespace {

/// MPI counts in int.
constexpr size_t kMostAtOnce = size_t{1} << 30;

class MpiWire : public Wire {
 public:
  MpiWire() {
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }
  ~MpiWire() override {
    if (!abandoned_) MPI_Finalize();
  }
  MpiWire(const MpiWire&) = delete;
  MpiWire& operator=(const MpiWire&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string name() const override { return "MPI"; }

  Handle Send(int peer, int tag, std::span<const std::byte> bytes) override {
    return InParts(peer, bytes.size(), [&](size_t at, int count, MPI_Request& request) {
      return MPI_Isend(bytes.data() + at, count, MPI_BYTE, peer, tag, MPI_COMM_WORLD, &request);
    });
  }

  Handle Receive(int peer, int tag, std::span<std::byte> bytes) override {
    return InParts(peer, bytes.size(), [&](size_t at, int count, MPI_Request& request) {
      return MPI_Irecv(bytes.data() + at, count, MPI_BYTE, peer, tag, MPI_COMM_WORLD, &request);
    });
  }

  bool Done(Handle handle) override {
    const auto found = open_.find(handle);
    CHECK(found != open_.end());
    int done = 0;
    Check(MPI_Testall(static_cast<int>(found->second.parts.size()), found->second.parts.data(),
                      &done, MPI_STATUSES_IGNORE),
          found->second.peer);
    if (done == 0) return false;
    open_.erase(found);
    return true;
  }

  void Abandon() override { abandoned_ = true; }

 private:
  struct Open {
    int peer = 0;
    std::vector<MPI_Request> parts;
  };

  template <class Start>
  Handle InParts(int peer, size_t size, Start start) {
    Open open{peer, {}};
    size_t at = 0;
    do {
      const size_t count = std::min(size - at, kMostAtOnce);
      open.parts.push_back(MPI_REQUEST_NULL);
      Check(start(at, static_cast<int>(count), open.parts.back()), peer);
      at += count;
    } while (at < size);
    open_[++last_] = std::move(open);
    return last_;
  }

  static void Check(int code, int peer) {
    if (code == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING] = {};
    int length = 0;
    MPI_Error_string(code, text, &length);
    throw PeerGone(peer, fmt::format("cannot be reached: {}", text));
  }

  int rank_ = 0;
  int size_ = 1;
  bool abandoned_ = false;
  Handle last_ = 0;
  std::map<Handle, Open> open_;
};

}  // namespace
}  // namespace pipelag

extern "C" pipelag::Wire* PipelagOpenMpiWire(const char** error) {
  int provided = 0;
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS) {
    *error = "MPI does not start";
    return nullptr;
  }
  if (provided < MPI_THREAD_SERIALIZED) {
    *error = "this MPI cannot be used by more than one thread";
    return nullptr;
  }
  return new pipelag::MpiWire;
}
