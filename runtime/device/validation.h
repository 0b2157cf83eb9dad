// The loss of final weights, computed on a device: networks that are trained there are too large
// for the host. Knows no schedule and no ranks.
#pragma once

#include <vector>

#include "runtime/device/device_compute.h"

namespace pipelag {

/// As ValidationLoss. Stage by stage, so that the device holds one of them at a time.
double DeviceValidationLoss(const TrainingOptions& options, StagePrecision precision,
                            const Corpus& corpus, const std::vector<const float*>& stage_weights,
                            ComputeDevice& device, const MakeDeviceStage& make);

}  // namespace pipelag
