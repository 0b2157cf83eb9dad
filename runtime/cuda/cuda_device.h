// One GPU by the CUDA runtime. Knows no stages and no messages.
#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <mutex>
#include <set>
#include <string>

#include "runtime/device/device.h"

namespace pipelag::cuda {

class CudaDevice : public ComputeDevice {
 public:
  /// Throws Error for one that is too old.
  explicit CudaDevice(int ordinal);

  std::string name() const override { return name_; }
  void MakeCurrent() override;
  void* Allocate(size_t bytes) override;
  void Free(void* memory) noexcept override;
  void* AllocatePinned(size_t bytes) override;
  void FreePinned(void* memory) noexcept override;
  Stream NewStream(bool urgent) override;
  void FreeStream(Stream stream) noexcept override;
  DeviceMark NewMark() override;
  void FreeMark(DeviceMark mark) noexcept override;
  void Record(DeviceMark mark, Stream stream) override;
  void WaitFor(Stream stream, DeviceMark mark) override;
  bool Reached(DeviceMark mark) override;
  Nanoseconds Between(DeviceMark from, DeviceMark to) override;
  void Copy(Stream stream, void* to, const void* from, size_t bytes) override;
  void Fill(Stream stream, void* at, uint8_t byte, size_t bytes) override;
  void Add(Stream stream, float* sum, const float* summand, int64_t count) override;
  void Add(Stream stream, double* sum, const double* summand, int64_t count) override;
  void SquaredNorm(Stream stream, const float* values, int64_t count, void* scratch,
                   double* norm) override;
  size_t SquaredNormScratch(int64_t count) const override;
  void BeginCapture(Stream stream) override;
  DeviceGraph EndCapture(Stream stream) override;
  void DropCapture(Stream stream) noexcept override;
  void Replay(Stream stream, DeviceGraph graph) override;
  void FreeGraph(DeviceGraph graph) noexcept override;
  bool Reaches(const ComputeDevice& other) override;
  bool Drain(Nanoseconds patience) noexcept override;

 private:
  void Check(cudaError_t status) const;
  std::string OutOfMemory(size_t bytes) const;

  int ordinal_;
  std::string name_;
  std::mutex mutex_;
  std::set<cudaStream_t> streams_;
  std::map<int, bool> reaches_;  ///< whether kernels of this one may touch another's memory
};

}  // namespace pipelag::cuda
