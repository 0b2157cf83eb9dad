// What is asked of one accelerator, and no more: memory, streams, marks for order and time, copies.
// The CUDA runtime stands behind it, in tests a device that is late and out of order. Knows no
// ranks, stages or messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "models/units.h"
#include "runtime/device/stream.h"

namespace pipelag {

/// A cudaEvent_t that takes the time: a place in a stream.
using DeviceMark = void*;

/// A cudaGraphExec_t: work of one stream that can be enqueued again.
using DeviceGraph = void*;

/// Used by several threads at once. Whatever takes a stream enqueues and returns; it works for
/// memory of any device of this process and pinned memory of the host. Everything throws Error
/// naming the device when the device has failed, whichever piece of work was to blame.
class ComputeDevice {
 public:
  ComputeDevice() = default;
  virtual ~ComputeDevice() = default;
  ComputeDevice(const ComputeDevice&) = delete;
  ComputeDevice& operator=(const ComputeDevice&) = delete;

  virtual std::string name() const = 0;  ///< "NVIDIA H200"
  /// Makes it the calling thread's current device, as DeviceStage wants it.
  virtual void MakeCurrent() = 0;

  /// Aligned to 256 bytes; of any contents. Throws Error with both sizes if there is too little.
  virtual void* Allocate(size_t bytes) = 0;
  virtual void Free(void* memory) noexcept = 0;
  /// Memory of the host that copies reach without waiting.
  virtual void* AllocatePinned(size_t bytes) = 0;
  virtual void FreePinned(void* memory) noexcept = 0;

  /// Independent of all other streams. Work of an urgent one goes first where both could run.
  virtual Stream NewStream(bool urgent) = 0;
  virtual void FreeStream(Stream stream) noexcept = 0;

  virtual DeviceMark NewMark() = 0;
  virtual void FreeMark(DeviceMark mark) noexcept = 0;
  /// The mark is reached once all work that the stream has been given so far is done. A mark may be
  /// set anew: whoever was told to wait for it before waits for where it was then.
  virtual void Record(DeviceMark mark, Stream stream) = 0;
  /// Work given to `stream` from now on, a stream of this device, starts after the mark, of any
  /// device, is reached. A mark that was never recorded holds nothing up.
  virtual void WaitFor(Stream stream, DeviceMark mark) = 0;
  virtual bool Reached(DeviceMark mark) = 0;
  /// Time from one mark of this device to another, both reached; exact to about a microsecond for
  /// up to some seconds. Negative if `to` came first.
  virtual Nanoseconds Between(DeviceMark from, DeviceMark to) = 0;

  virtual void Copy(Stream stream, void* to, const void* from, size_t bytes) = 0;
  virtual void Fill(Stream stream, void* at, uint8_t byte, size_t bytes) = 0;
  /// sum += summand, element by element; the second may be a neighbour's that it Reaches.
  virtual void Add(Stream stream, float* sum, const float* summand, int64_t count) = 0;
  virtual void Add(Stream stream, double* sum, const double* summand, int64_t count) = 0;

  /// *norm = Σ values² in double, of the bits that DeviceStage::SquaredNorms has for a tensor of
  /// these values. `scratch` (SquaredNormScratch bytes) and `norm` are memory of this device.
  virtual void SquaredNorm(Stream stream, const float* values, int64_t count, void* scratch,
                           double* norm) = 0;
  virtual size_t SquaredNormScratch(int64_t count) const = 0;

  /// What the calling thread gives the stream from now on is not done but recorded: kernels, copies
  /// and fills of that stream alone. Until the capture ends the thread takes nothing from the
  /// device and waits for nothing.
  virtual void BeginCapture(Stream stream) = 0;
  /// The work recorded. Takes memory, and so may wait for all that runs.
  virtual DeviceGraph EndCapture(Stream stream) = 0;
  virtual void DropCapture(Stream stream) noexcept = 0;
  virtual void Replay(Stream stream, DeviceGraph graph) = 0;
  /// Once all its work is done.
  virtual void FreeGraph(DeviceGraph graph) noexcept = 0;

  /// Whether kernels of this device may read the other's memory, which is opened to them when this
  /// is first asked, if it can be. Copies go between any two, and straight to one that is reached.
  virtual bool Reaches(const ComputeDevice& other) = 0;
  /// Waits until all work of all streams is done. False if it is not within `patience`: then memory
  /// that the work may touch must not be freed.
  virtual bool Drain(Nanoseconds patience) noexcept = 0;
};

/// A piece of device memory. The device outlives it.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(ComputeDevice& device, size_t bytes)
      : device_(&device), memory_(bytes > 0 ? device.Allocate(bytes) : nullptr) {}
  ~DeviceMemory() { Reset(); }
  DeviceMemory(DeviceMemory&& other) noexcept
      : device_(other.device_), memory_(std::exchange(other.memory_, nullptr)) {}
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    Reset();
    device_ = other.device_;
    memory_ = std::exchange(other.memory_, nullptr);
    return *this;
  }

  std::byte* get() const { return static_cast<std::byte*>(memory_); }
  /// Never to be freed: work that does not end may still touch it.
  void Abandon() { memory_ = nullptr; }

 private:
  void Reset() {
    if (memory_ != nullptr) device_->Free(std::exchange(memory_, nullptr));
  }

  ComputeDevice* device_ = nullptr;
  void* memory_ = nullptr;
};

/// A stream for as long as it is wanted. The device outlives it.
class OwnedStream {
 public:
  OwnedStream(ComputeDevice& device, bool urgent)
      : device_(device), stream_(device.NewStream(urgent)) {}
  ~OwnedStream() { device_.FreeStream(stream_); }
  OwnedStream(const OwnedStream&) = delete;
  OwnedStream& operator=(const OwnedStream&) = delete;

  Stream get() const { return stream_; }
  ComputeDevice& device() const { return device_; }

 private:
  ComputeDevice& device_;
  Stream stream_;
};

}  // namespace pipelag
