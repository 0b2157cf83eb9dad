#include "runtime/cuda/cuda_device.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <thread>

#include "models/error.h"
#include "runtime/cuda/kernels/buffers.h"
#include "runtime/cuda/kernels/sums.h"

namespace pipelag::cuda {
namespace {

/// The first with bfloat16 in its tensor cores, and the oldest that is compiled for.
constexpr int kOldestMajor = 8;

cudaStream_t StreamOf(Stream stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t EventOf(DeviceMark mark) { return static_cast<cudaEvent_t>(mark); }

}  // namespace

CudaDevice::CudaDevice(int ordinal) : ordinal_(ordinal), name_(fmt::format("GPU {}", ordinal)) {
  cudaDeviceProp properties{};
  Check(cudaGetDeviceProperties(&properties, ordinal));
  name_ = properties.name;
  if (properties.major < kOldestMajor) {
    throw Error(fmt::format("{} is too old: it is sm_{}{}, the oldest that works is sm_80", name_,
                            properties.major, properties.minor));
  }
}

void CudaDevice::Check(cudaError_t status) const {
  if (status == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());
  throw Error(fmt::format("{}: {}", name_, cudaGetErrorString(status)));
}

void CudaDevice::MakeCurrent() { Check(cudaSetDevice(ordinal_)); }

std::string CudaDevice::OutOfMemory(size_t bytes) const {
  size_t free = 0;
  size_t total = 0;
  static_cast<void>(cudaGetLastError());
  static_cast<void>(cudaMemGetInfo(&free, &total));
  constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
  return fmt::format("{}: {:.2f} GiB of memory cannot be had: {:.2f} of {:.2f} GiB are free", name_,
                     static_cast<double>(bytes) / kGiB, static_cast<double>(free) / kGiB,
                     static_cast<double>(total) / kGiB);
}

void* CudaDevice::Allocate(size_t bytes) {
  MakeCurrent();
  void* memory = nullptr;
  const cudaError_t status = cudaMalloc(&memory, bytes);
  if (status == cudaErrorMemoryAllocation) throw Error(OutOfMemory(bytes));
  Check(status);
  return memory;
}

// What frees can only fail with an error that some other call has thrown already.
void CudaDevice::Free(void* memory) noexcept {
  static_cast<void>(cudaSetDevice(ordinal_));
  static_cast<void>(cudaFree(memory));
}

void* CudaDevice::AllocatePinned(size_t bytes) {
  MakeCurrent();
  void* memory = nullptr;
  Check(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable));
  return memory;
}

void CudaDevice::FreePinned(void* memory) noexcept { static_cast<void>(cudaFreeHost(memory)); }

Stream CudaDevice::NewStream(bool urgent) {
  MakeCurrent();
  int least = 0;
  int greatest = 0;
  Check(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  cudaStream_t stream = nullptr;
  Check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, urgent ? greatest : least));
  const std::lock_guard lock(mutex_);
  streams_.insert(stream);
  return stream;
}

void CudaDevice::FreeStream(Stream stream) noexcept {
  {
    const std::lock_guard lock(mutex_);
    streams_.erase(StreamOf(stream));
  }
  static_cast<void>(cudaStreamDestroy(StreamOf(stream)));
}

DeviceMark CudaDevice::NewMark() {
  MakeCurrent();
  cudaEvent_t event = nullptr;
  Check(cudaEventCreateWithFlags(&event, cudaEventDefault));
  return event;
}

void CudaDevice::FreeMark(DeviceMark mark) noexcept {
  static_cast<void>(cudaEventDestroy(EventOf(mark)));
}

void CudaDevice::Record(DeviceMark mark, Stream stream) {
  Check(cudaEventRecord(EventOf(mark), StreamOf(stream)));
}

void CudaDevice::WaitFor(Stream stream, DeviceMark mark) {
  Check(cudaStreamWaitEvent(StreamOf(stream), EventOf(mark), 0));
}

bool CudaDevice::Reached(DeviceMark mark) {
  const cudaError_t status = cudaEventQuery(EventOf(mark));
  if (status == cudaErrorNotReady) {
    static_cast<void>(cudaGetLastError());  // no error for whoever asks next
    return false;
  }
  Check(status);
  return true;
}

Nanoseconds CudaDevice::Between(DeviceMark from, DeviceMark to) {
  float milliseconds = 0;
  Check(cudaEventElapsedTime(&milliseconds, EventOf(from), EventOf(to)));
  return Nanoseconds(std::llround(static_cast<double>(milliseconds) * 1e6));
}

void CudaDevice::Copy(Stream stream, void* to, const void* from, size_t bytes) {
  Check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, StreamOf(stream)));
}

void CudaDevice::Fill(Stream stream, void* at, uint8_t byte, size_t bytes) {
  Check(cudaMemsetAsync(at, byte, bytes, StreamOf(stream)));
}

void CudaDevice::Add(Stream stream, float* sum, const float* summand, int64_t count) {
  MakeCurrent();
  cuda::Add(stream, sum, summand, count);
}

void CudaDevice::Add(Stream stream, double* sum, const double* summand, int64_t count) {
  MakeCurrent();
  cuda::Add(stream, sum, summand, count);
}

void CudaDevice::SquaredNorm(Stream stream, const float* values, int64_t count, void* scratch,
                             double* norm) {
  MakeCurrent();
  cuda::SquaredNorm(stream, count, values, static_cast<double*>(scratch), norm);
}

size_t CudaDevice::SquaredNormScratch(int64_t count) const {
  return static_cast<size_t>(NormPieces(count)) * sizeof(double);
}

// Other threads go on as they like meanwhile.
void CudaDevice::BeginCapture(Stream stream) {
  Check(cudaStreamBeginCapture(StreamOf(stream), cudaStreamCaptureModeThreadLocal));
}

DeviceGraph CudaDevice::EndCapture(Stream stream) {
  cudaGraph_t graph = nullptr;
  Check(cudaStreamEndCapture(StreamOf(stream), &graph));
  cudaGraphExec_t runnable = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&runnable, graph, 0);
  static_cast<void>(cudaGraphDestroy(graph));
  Check(status);
  return runnable;
}

void CudaDevice::DropCapture(Stream stream) noexcept {
  cudaGraph_t graph = nullptr;
  static_cast<void>(cudaStreamEndCapture(StreamOf(stream), &graph));
  if (graph != nullptr) static_cast<void>(cudaGraphDestroy(graph));
  static_cast<void>(cudaGetLastError());
}

void CudaDevice::Replay(Stream stream, DeviceGraph graph) {
  Check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), StreamOf(stream)));
}

void CudaDevice::FreeGraph(DeviceGraph graph) noexcept {
  static_cast<void>(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph)));
}

bool CudaDevice::Reaches(const ComputeDevice& other) {
  const auto* const device = dynamic_cast<const CudaDevice*>(&other);
  if (device == nullptr) return false;
  const int peer = device->ordinal_;
  if (peer == ordinal_) return true;
  const std::lock_guard lock(mutex_);
  const auto known = reaches_.find(peer);
  if (known != reaches_.end()) return known->second;
  MakeCurrent();
  int reachable = 0;
  Check(cudaDeviceCanAccessPeer(&reachable, ordinal_, peer));
  if (reachable != 0) {
    // Somebody else may own the peer, or too many may be mapped: then copies do.
    const cudaError_t status = cudaDeviceEnablePeerAccess(peer, 0);
    static_cast<void>(cudaGetLastError());
    if (status != cudaSuccess && status != cudaErrorPeerAccessAlreadyEnabled) reachable = 0;
  }
  reaches_[peer] = reachable != 0;
  return reachable != 0;
}

bool CudaDevice::Drain(Nanoseconds patience) noexcept {
  const auto end = std::chrono::steady_clock::now() + patience;
  std::set<cudaStream_t> streams;
  {
    const std::lock_guard lock(mutex_);
    streams = streams_;
  }
  for (const cudaStream_t stream : streams) {
    // After an error nothing runs any more.
    while (cudaStreamQuery(stream) == cudaErrorNotReady) {
      if (std::chrono::steady_clock::now() >= end) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }
  return true;
}

}  // namespace pipelag::cuda
