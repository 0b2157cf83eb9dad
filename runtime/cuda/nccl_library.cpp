#include "runtime/cuda/nccl_library.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <nccl.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>

#include "models/error.h"

namespace pipelag::cuda {
namespace {

/// Blocks of the GPU for the messages of one lane: a receive that waits keeps them.
constexpr int kMostBlocks = 4;
/// Below that, streams share queues of the GPU and hold each other up.
constexpr int kLeastConnections = 8;

void CheckNccl(ncclResult_t result, ncclComm_t communicator) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  const char* const last = ncclGetLastError(communicator);
  throw Error(fmt::format("NCCL: {}{}{}", ncclGetErrorString(result),
                          last == nullptr || *last == '\0' ? "" : ": ",
                          last == nullptr ? "" : last));
}

class NcclCommunicator : public Communicator {
 public:
  explicit NcclCommunicator(ncclComm_t communicator) : communicator_(communicator) {}
  ~NcclCommunicator() override {
    if (ended_.exchange(true)) return;
    static_cast<void>(finished_ ? ncclCommDestroy(communicator_) : ncclCommAbort(communicator_));
  }

  void Post(std::span<const Half> group, Stream stream) override {
    CheckNccl(ncclGroupStart(), communicator_);
    const auto on = static_cast<cudaStream_t>(stream);
    ncclResult_t failed = ncclSuccess;
    for (const Half& half : group) {
      const ncclResult_t result =
          half.send ? ncclSend(half.buffer, half.bytes, ncclInt8, half.peer, communicator_, on)
                    : ncclRecv(half.buffer, half.bytes, ncclInt8, half.peer, communicator_, on);
      if (result != ncclSuccess && result != ncclInProgress) failed = result;
    }
    const ncclResult_t ended = ncclGroupEnd();
    CheckNccl(failed, communicator_);
    CheckNccl(ended, communicator_);
  }

  bool Ready() override {
    ncclResult_t state = ncclSuccess;
    CheckNccl(ncclCommGetAsyncError(communicator_, &state), communicator_);
    CheckNccl(state, communicator_);
    if (state == ncclInProgress) return false;
    finished_ = finishing_;
    return true;
  }

  void Finish() override {
    CheckNccl(ncclCommFinalize(communicator_), communicator_);
    finishing_ = true;
  }

  void Abort() noexcept override {
    if (!ended_.exchange(true)) static_cast<void>(ncclCommAbort(communicator_));
  }

 private:
  ncclComm_t communicator_;
  bool finishing_ = false;
  bool finished_ = false;
  std::atomic<bool> ended_{false};
};

/// What users set for other programs, and what would hang here.
void CheckEnvironment() {
  const char* const order = std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
  if (order != nullptr && std::strcmp(order, "0") != 0) {
    throw Error(
        "NCCL_LAUNCH_ORDER_IMPLICIT is set: receives are posted before the sends that their "
        "messages wait for, so NCCL must be free to start them in any order");
  }
  const char* const connections = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  if (connections != nullptr && std::atoi(connections) < kLeastConnections) {
    throw Error(
        fmt::format("CUDA_DEVICE_MAX_CONNECTIONS is {}: a receive that waits would hold up other "
                    "streams; it must be at least {}",
                    connections, kLeastConnections));
  }
}

class NcclLibrary : public CollectiveLibrary {
 public:
  std::string name() const override {
    int version = 0;
    CheckNccl(ncclGetVersion(&version), nullptr);
    return fmt::format("NCCL {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
  }

  Id NewId() override {
    static_assert(sizeof(ncclUniqueId) == sizeof(Id));
    ncclUniqueId unique;
    CheckNccl(ncclGetUniqueId(&unique), nullptr);
    Id id;
    std::memcpy(id.data(), &unique, sizeof unique);
    return id;
  }

  std::unique_ptr<Communicator> Join(const Id& id, int size, int rank) override {
    CheckEnvironment();
    ncclUniqueId unique;
    std::memcpy(&unique, id.data(), sizeof unique);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    if (size <= 2) config.maxCTAs = kMostBlocks;
    ncclComm_t communicator = nullptr;
    CheckNccl(ncclCommInitRankConfig(&communicator, size, unique, rank, &config), communicator);
    return std::make_unique<NcclCommunicator>(communicator);
  }
};

}  // namespace

std::unique_ptr<CollectiveLibrary> OpenNccl() { return std::make_unique<NcclLibrary>(); }

}  // namespace pipelag::cuda
