// The cases of tests/runtime/cuda on the GPU at hand: every kernel beside the CPU's network and
// twice the same to the last bit, then the time that large shapes take, as a share of what memory
// or tensor cores allow. Exits 77 where there is no GPU, 1 if a kernel deviates.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "models/error.h"
#include "tests/runtime/cuda/kernel_case.h"

namespace pipelag::cuda {
namespace {

constexpr int kSkipped = 77;

void Require(cudaError_t status) {
  if (status != cudaSuccess) throw Error(std::string("CUDA: ") + cudaGetErrorString(status));
}

class GpuMemory : public KernelMemory {
 public:
  std::shared_ptr<std::byte> Allocate(size_t bytes) override {
    void* memory = nullptr;
    Require(cudaMalloc(&memory, std::max<size_t>(bytes, 1)));
    return {static_cast<std::byte*>(memory), [](std::byte* at) { cudaFree(at); }};
  }
  void Write(const void* from, size_t bytes, void* to) override {
    Require(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
  }
  void Read(const void* from, size_t bytes, void* to) override {
    Require(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost));
  }
};

int Attribute(cudaDeviceAttr attribute) {
  int value = 0;
  Require(cudaDeviceGetAttribute(&value, attribute, 0));
  return value;
}

/// Milliseconds of a call that finds nothing of its own in the cache, by events on the stream; the
/// mean of several.
class Stopwatch {
 public:
  explicit Stopwatch(GpuMemory& memory)
      : cache_bytes_(2 * static_cast<size_t>(Attribute(cudaDevAttrL2CacheSize))),
        cache_(memory.Allocate(cache_bytes_)) {
    for (cudaEvent_t& event : events_) Require(cudaEventCreate(&event));
  }
  ~Stopwatch() {
    for (const cudaEvent_t event : events_) cudaEventDestroy(event);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  template <class Call>
  double Milliseconds(Call call) {
    call();  // whatever is done once only
    for (size_t i = 0; i < events_.size(); i += 2) {
      Require(cudaMemsetAsync(cache_.get(), 0, cache_bytes_, nullptr));
      Require(cudaEventRecord(events_[i]));
      call();
      Require(cudaEventRecord(events_[i + 1]));
    }
    Require(cudaDeviceSynchronize());
    double sum = 0;
    for (size_t i = 0; i < events_.size(); i += 2) {
      float milliseconds = 0;
      Require(cudaEventElapsedTime(&milliseconds, events_[i], events_[i + 1]));
      sum += static_cast<double>(milliseconds);
    }
    return sum / (static_cast<double>(events_.size()) / 2);
  }

 private:
  size_t cache_bytes_;
  std::shared_ptr<std::byte> cache_;
  std::array<cudaEvent_t, 20> events_{};
};

struct Ceilings {
  double bytes_per_ms = 0;       ///< a copy within the device, measured
  double operations_per_ms = 0;  ///< dense bf16 on tensor cores, by the data sheets
};

Ceilings FindCeilings(GpuMemory& memory, Stopwatch& watch) {
  constexpr size_t kBytes = size_t{1} << 30;
  const auto from = memory.Allocate(kBytes);
  const auto to = memory.Allocate(kBytes);
  const double milliseconds = watch.Milliseconds([&] {
    Require(cudaMemcpyAsync(to.get(), from.get(), kBytes, cudaMemcpyDeviceToDevice, nullptr));
  });
  // Operations per cycle and multiprocessor: A100 2048, H100 4096, B200 8192.
  const int major = Attribute(cudaDevAttrComputeCapabilityMajor);
  const double per_cycle = major >= 10 ? 8192 : major == 9 ? 4096 : 2048;
  return {2.0 * kBytes / milliseconds,
          per_cycle * Attribute(cudaDevAttrMultiProcessorCount) * Attribute(cudaDevAttrClockRate)};
}

/// "AddBias_bf16" of "AddBias_bf16_5x37".
std::string KernelOf(const std::string& name) {
  const size_t first = name.find('_');
  return name.substr(0, name.find('_', first == std::string::npos ? first : first + 1));
}

struct Verdict {
  Deviation worst;
  int cases = 0;
  bool repeats = true;
};

bool CompareAll(GpuMemory& memory) {
  std::map<std::string, Verdict> verdicts;
  for (const NamedCase& named : SmallCases()) {
    KernelCase kernel = named.make(memory);
    Verdict& verdict = verdicts[KernelOf(named.name)];
    std::vector<std::byte> bits[2];
    for (std::vector<std::byte>& of : bits) {
      kernel.Prepare();
      kernel.launch();
      Require(cudaDeviceSynchronize());
      of = kernel.Bits();
    }
    ++verdict.cases;
    verdict.repeats = verdict.repeats && bits[0] == bits[1];
    for (const Deviation& deviation : kernel.Compare()) {
      // Results whose every bit has to agree leave no room for a ratio.
      const bool within = deviation.error <= deviation.tolerance;
      const bool worst_within = verdict.worst.error <= verdict.worst.tolerance;
      if (within != worst_within ? !within : !(deviation.error <= verdict.worst.error)) {
        verdict.worst = deviation;
      }
    }
  }
  bool good = true;
  std::printf("%-28s %5s %10s %10s  %s\n", "kernel", "cases", "error", "tolerance", "verdict");
  for (const auto& [kernel, verdict] : verdicts) {
    const bool close = verdict.worst.error <= verdict.worst.tolerance;
    good = good && close && verdict.repeats;
    std::printf("%-28s %5d %10.2e %10.2e  %s%s\n", kernel.c_str(), verdict.cases,
                verdict.worst.error, verdict.worst.tolerance,
                close ? "agrees" : ("deviates in " + verdict.worst.of).c_str(),
                verdict.repeats ? "" : ", does not repeat");
  }
  return good;
}

void TimeAll(GpuMemory& memory) {
  Stopwatch watch(memory);
  const Ceilings ceilings = FindCeilings(memory, watch);
  std::printf("\n%.2f TB/s copied within the device, %.0f TFLOP/s bf16 by the data sheet\n",
              ceilings.bytes_per_ms * 1e-9, ceilings.operations_per_ms * 1e-9);
  std::printf("%-52s %10s %10s %10s\n", "kernel", "ms", "of memory", "of tensor");
  for (const NamedCase& named : LargeCases()) {
    KernelCase kernel = named.make(memory);
    kernel.Prepare();
    const double milliseconds = watch.Milliseconds(kernel.launch);
    std::printf("%-52s %10.4f %9.1f%%", named.name.c_str(), milliseconds,
                100 * kernel.moved_bytes / ceilings.bytes_per_ms / milliseconds);
    if (kernel.operations > 0) {
      std::printf(" %9.1f%%", 100 * kernel.operations / ceilings.operations_per_ms / milliseconds);
    }
    std::printf("\n");
  }
}

int Check() {
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status != cudaSuccess || devices == 0) {
    std::printf("no GPU: %s\n", cudaGetErrorString(status));
    return kSkipped;
  }
  cudaDeviceProp properties{};
  Require(cudaGetDeviceProperties(&properties, 0));
  std::printf("%s\n", properties.name);
  GpuMemory memory;
  const bool good = CompareAll(memory);
  TimeAll(memory);
  return good ? 0 : 1;
}

}  // namespace
}  // namespace pipelag::cuda

int main() {
  try {
    return pipelag::cuda::Check();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
