// Training on devices: which rank computes on which, and how the ranks reach each other. Knows
// neither CUDA nor how a run goes (runtime/cpu/threads.h, runtime/processes/train.h).
#pragma once

#include <optional>

#include "runtime/cpu/threads.h"
#include "runtime/device/backend.h"
#include "runtime/processes/train.h"

namespace pipelag {

enum class DeviceTransport : uint8_t {
  kLocal,  ///< copies within the process, on one device or between its devices
  kNccl,
};

struct DeviceRun {
  StagePrecision precision = StagePrecision::kBfloat16;
  DeviceTransport transport = DeviceTransport::kLocal;
  /// Passes of stages as graphs. With kLocal only: a graph takes memory when it is made, which is
  /// not to be had beside a receive that waits.
  bool graphs = false;
};

/// For TrainOnThreads: the ranks of a run share the devices there are, neighbours the same one
/// where there are more ranks than devices. NCCL takes one rank a device, or all ranks on one, each
/// with messages to itself. Borrows the backend; throws Error for what does not go together.
OpenBackends OnDevices(DeviceBackend& backend, const DeviceRun& run);

/// For TrainOnProcesses: this process's rank on device number `local_rank` modulo what it sees,
/// over NCCL.
OpenProcessBackends OnDeviceOfProcess(DeviceBackend& backend, const DeviceRun& run, int local_rank);

/// `options` with their final weights validated on the first device. Borrows all.
TrainingOptions ValidatedOnDevice(TrainingOptions options, DeviceBackend& backend,
                                  const DeviceRun& run, const Corpus& corpus);

/// Which rank of its host a launcher says this process is: LOCAL_RANK, or what MPI and Slurm call
/// it; nothing if none does. Throws Error naming the variable if it is no number.
std::optional<int> LocalRank();

}  // namespace pipelag
