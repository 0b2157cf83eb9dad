// The devices of this machine as the shared object makes them, and how it is found. Knows no CUDA.
#pragma once

#include <memory>
#include <string>

#include "runtime/device/collective_library.h"
#include "runtime/device/device.h"
#include "runtime/device/device_stage.h"

namespace pipelag {

class DeviceBackend {
 public:
  DeviceBackend() = default;
  virtual ~DeviceBackend() = default;
  DeviceBackend(const DeviceBackend&) = delete;
  DeviceBackend& operator=(const DeviceBackend&) = delete;

  virtual int devices() const = 0;
  /// Device number 0 ≤ ordinal < devices().
  virtual std::unique_ptr<ComputeDevice> Open(int ordinal) = 0;
  /// On the calling thread's current device. Throws Error for what devices cannot do, naming it.
  virtual std::unique_ptr<DeviceStage> MakeStage(const DeviceStageOptions& options) = 0;
  /// Null: built without. Throws Error saying why it cannot be loaded here.
  virtual CollectiveLibrary* collectives() = 0;
};

constexpr const char* kCudaLibrary = "libpipelag_cuda.so";
constexpr const char* kOpenCuda = "PipelagOpenCuda";
/// What kOpenCuda names. Returns null and sets `error`, which it owns, where there is no GPU.
using OpenCuda = DeviceBackend* (*)(const char** error);

/// Loads the shared object from beside the running program; it stays loaded. `eager`: all kernels
/// are loaded before any runs, as messages between ranks by NCCL need it: a receive is a kernel
/// that runs until another rank sends, and the first launch of one that is loaded late may wait for
/// all that run. Throws Error beginning with "no GPU was found" where this build has none or the
/// machine has no GPU.
std::unique_ptr<DeviceBackend> LoadCuda(bool eager = false);
/// Whether the shared object is there, and if so whether it finds a GPU: "2 × NVIDIA H200", else
/// why not.
std::string DescribeCuda();

}  // namespace pipelag
