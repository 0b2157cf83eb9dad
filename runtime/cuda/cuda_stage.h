// Makes the stages of a CUDA device.
#pragma once

#include <memory>

#include "runtime/device/device_stage.h"

namespace pipelag::cuda {

/// On the calling thread's current device, with products by cuBLASLt. Throws Error as MakeStage, or
/// if there is no cuBLASLt to be had.
std::unique_ptr<DeviceStage> MakeCudaStage(const DeviceStageOptions& options);

}  // namespace pipelag::cuda
