// All that a run on devices needs, on late GPUs.
#pragma once

#include "runtime/device/backend.h"
#include "tests/runtime/host_stage.h"
#include "tests/runtime/late_gpu.h"
#include "tests/runtime/strict_nccl.h"

namespace pipelag {

class LateBackend : public DeviceBackend {
 public:
  LateBackend(int devices, uint64_t seed, bool reach = true)
      : devices_(devices), reach_(reach), machine_(seed) {}

  int devices() const override { return devices_; }
  std::unique_ptr<ComputeDevice> Open(int ordinal) override {
    CHECK(ordinal >= 0 && ordinal < devices_);
    auto gpu = std::make_unique<LateGpu>(machine_, ordinal, reach_);
    if (on_open) on_open(*gpu);
    return gpu;
  }
  std::unique_ptr<DeviceStage> MakeStage(const DeviceStageOptions& options) override {
    return std::make_unique<HostStage>(options);
  }
  CollectiveLibrary* collectives() override { return &nccl; }

  std::function<void(LateGpu&)> on_open;
  StrictNccl nccl;

 private:
  int devices_;
  bool reach_;
  LateMachine machine_;
};

}  // namespace pipelag
