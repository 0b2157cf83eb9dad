// The one function of the shared object that others see: makes the GPUs of this machine, if there
// are any. Loaded on demand, so that everything else starts at once and runs where there are none.
#include "runtime/device/backend.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <cstdlib>
#include <exception>

#include "models/error.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_stage.h"
#ifdef PIPELAG_NCCL
#include "runtime/cuda/nccl_library.h"
#endif

namespace pipelag::cuda {
namespace {

class CudaBackend : public DeviceBackend {
 public:
  explicit CudaBackend(int devices) : devices_(devices) {}

  int devices() const override { return devices_; }
  std::unique_ptr<ComputeDevice> Open(int ordinal) override {
    return std::make_unique<CudaDevice>(ordinal);
  }
  std::unique_ptr<DeviceStage> MakeStage(const DeviceStageOptions& options) override {
    return MakeCudaStage(options);
  }
  CollectiveLibrary* collectives() override {
#ifdef PIPELAG_NCCL
    if (!nccl_) nccl_ = OpenNccl();
    return nccl_.get();
#else
    return nullptr;
#endif
  }

 private:
  int devices_;
  std::unique_ptr<CollectiveLibrary> nccl_;
};

/// Why there is none, in words: a missing driver is reported as one that is too old.
const char* WhyNone(cudaError_t status) {
  int driver = 0;
  if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0) {
    return "the NVIDIA driver is not installed";
  }
  return status == cudaSuccess ? "the driver sees none" : cudaGetErrorString(status);
}

}  // namespace
}  // namespace pipelag::cuda

extern "C" pipelag::DeviceBackend* PipelagOpenCuda(const char** error) {
  // As many as there are: streams that share a queue of the GPU hold each other up. Only before the
  // first call.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status != cudaSuccess || devices == 0) {
    *error = pipelag::cuda::WhyNone(status);
    return nullptr;
  }
  return new pipelag::cuda::CudaBackend(devices);
}
