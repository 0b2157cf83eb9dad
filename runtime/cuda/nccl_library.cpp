#include "runtime/cuda/nccl_library.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
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

/// What is called of it, by its own names.
struct Nccl {
  explicit Nccl(const char* file) : handle_(dlopen(file, RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) throw Error(fmt::format("NCCL cannot be loaded: {}", dlerror()));
    Find(GetVersion, "ncclGetVersion");
    Find(GetUniqueId, "ncclGetUniqueId");
    Find(GetErrorString, "ncclGetErrorString");
    Find(GetLastError, "ncclGetLastError");
    Find(CommInitRankConfig, "ncclCommInitRankConfig");
    Find(CommGetAsyncError, "ncclCommGetAsyncError");
    Find(CommFinalize, "ncclCommFinalize");
    Find(CommDestroy, "ncclCommDestroy");
    Find(CommAbort, "ncclCommAbort");
    Find(GroupStart, "ncclGroupStart");
    Find(GroupEnd, "ncclGroupEnd");
    Find(Send, "ncclSend");
    Find(Recv, "ncclRecv");
  }

  decltype(&ncclGetVersion) GetVersion;
  decltype(&ncclGetUniqueId) GetUniqueId;
  decltype(&ncclGetErrorString) GetErrorString;
  decltype(&ncclGetLastError) GetLastError;
  decltype(&ncclCommInitRankConfig) CommInitRankConfig;
  decltype(&ncclCommGetAsyncError) CommGetAsyncError;
  decltype(&ncclCommFinalize) CommFinalize;
  decltype(&ncclCommDestroy) CommDestroy;
  decltype(&ncclCommAbort) CommAbort;
  decltype(&ncclGroupStart) GroupStart;
  decltype(&ncclGroupEnd) GroupEnd;
  decltype(&ncclSend) Send;
  decltype(&ncclRecv) Recv;

  void Check(ncclResult_t result, ncclComm_t communicator) const {
    if (result == ncclSuccess || result == ncclInProgress) return;
    const char* const last = GetLastError(communicator);
    throw Error(fmt::format("NCCL: {}{}{}", GetErrorString(result),
                            last == nullptr || *last == '\0' ? "" : ": ",
                            last == nullptr ? "" : last));
  }

 private:
  template <class Function>
  void Find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(handle_, name));
    if (function == nullptr) throw Error(fmt::format("NCCL cannot be used: {}", dlerror()));
  }

  void* handle_;  // never closed: its threads may outlive a run
};

class NcclCommunicator : public Communicator {
 public:
  NcclCommunicator(const Nccl& nccl, ncclComm_t communicator)
      : nccl_(nccl), communicator_(communicator) {}
  ~NcclCommunicator() override {
    if (ended_.exchange(true)) return;
    static_cast<void>(finished_ ? nccl_.CommDestroy(communicator_)
                                : nccl_.CommAbort(communicator_));
  }

  void Post(std::span<const Half> group, Stream stream) override {
    nccl_.Check(nccl_.GroupStart(), communicator_);
    const auto on = static_cast<cudaStream_t>(stream);
    ncclResult_t failed = ncclSuccess;
    for (const Half& half : group) {
      const ncclResult_t result =
          half.send ? nccl_.Send(half.buffer, half.bytes, ncclInt8, half.peer, communicator_, on)
                    : nccl_.Recv(half.buffer, half.bytes, ncclInt8, half.peer, communicator_, on);
      if (result != ncclSuccess && result != ncclInProgress) failed = result;
    }
    const ncclResult_t ended = nccl_.GroupEnd();
    nccl_.Check(failed, communicator_);
    nccl_.Check(ended, communicator_);
  }

  bool Ready() override {
    ncclResult_t state = ncclSuccess;
    nccl_.Check(nccl_.CommGetAsyncError(communicator_, &state), communicator_);
    nccl_.Check(state, communicator_);
    if (state == ncclInProgress) return false;
    finished_ = finishing_;
    return true;
  }

  void Finish() override {
    nccl_.Check(nccl_.CommFinalize(communicator_), communicator_);
    finishing_ = true;
  }

  void Abort() noexcept override {
    if (!ended_.exchange(true)) static_cast<void>(nccl_.CommAbort(communicator_));
  }

 private:
  const Nccl& nccl_;
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
  explicit NcclLibrary(const char* file) : nccl_(file) {}

  std::string name() const override {
    int version = 0;
    nccl_.Check(nccl_.GetVersion(&version), nullptr);
    return fmt::format("NCCL {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
  }

  Id NewId() override {
    static_assert(sizeof(ncclUniqueId) == sizeof(Id));
    ncclUniqueId unique;
    nccl_.Check(nccl_.GetUniqueId(&unique), nullptr);
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
    nccl_.Check(nccl_.CommInitRankConfig(&communicator, size, unique, rank, &config), communicator);
    return std::make_unique<NcclCommunicator>(nccl_, communicator);
  }

 private:
  Nccl nccl_;
};

}  // namespace

std::unique_ptr<CollectiveLibrary> OpenNccl(const char* file) {
  return std::make_unique<NcclLibrary>(file);
}

}  // namespace pipelag::cuda
