// Makes one stage behind its interface: network and optimizer, joined. This folder calls kernels,
// products and memory by their names alone, so that the tests run it without a device.
#pragma once

#include <memory>

#include "runtime/cuda/products.h"
#include "runtime/device/device_stage.h"

namespace pipelag::cuda {

/// Throws Error as the constructors of DeviceNetwork and DeviceOptimizer.
std::unique_ptr<DeviceStage> MakeStage(const DeviceStageOptions& options,
                                       std::unique_ptr<Products> products);

}  // namespace pipelag::cuda
