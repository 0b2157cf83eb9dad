// Which networks, optimizers and corrections a device has. Knows names only, and no device.
#pragma once

#include <string>
#include <vector>

#include "runtime/correction/correction.h"
#include "runtime/optimizer/optimizer.h"

namespace pipelag {

/// In the order in which they are shown.
std::vector<std::string> DeviceOptimizerNames();
std::vector<std::string> DeviceCorrectionNames();

/// Throws Error naming what there is if a device has not got the optimizer or the correction.
void CheckDeviceOptimizer(const OptimizerOptions& optimizer, const CorrectionOptions& correction);

}  // namespace pipelag
