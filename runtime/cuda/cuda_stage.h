// Makes the stages of a device: the network and the optimizer of one, joined.
#pragma once

#include <memory>

#include "runtime/cuda/products.h"
#include "runtime/device/device_stage.h"

namespace pipelag::cuda {

/// On the calling thread's current device, by cuBLASLt. Throws Error as the constructors of
/// DeviceNetwork and DeviceOptimizer.
std::unique_ptr<DeviceStage> MakeCudaStage(const DeviceStageOptions& options);

/// The same with products by whom one likes.
std::unique_ptr<DeviceStage> MakeStage(const DeviceStageOptions& options,
                                       std::unique_ptr<Products> products);

}  // namespace pipelag::cuda
