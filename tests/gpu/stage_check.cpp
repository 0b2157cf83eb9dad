// The tests of stages, optimizers and linear layers of tests/runtime/cuda on the GPU at hand, with
// cuBLASLt's products: beside the CPU's network and optimizers, and the same to the last bit where
// they have to be. Exits 77 where there is no GPU, 1 if anything deviates.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "models/error.h"
#include "runtime/cuda/cublas_products.h"
#include "runtime/cuda/memory.h"
#include "tests/runtime/cuda/linear_cases.h"
#include "tests/runtime/cuda/test_device.h"

namespace pipelag::cuda {
namespace {

constexpr int kSkipped = 77;

/// Of host and device alike.
class ManagedMemory : public KernelMemory {
 public:
  std::shared_ptr<std::byte> Allocate(size_t bytes) override {
    return {static_cast<std::byte*>(AllocateOnDevice(bytes)), &FreeOnDevice};
  }
  void Write(const void* from, size_t bytes, void* to) override {
    Copy(nullptr, bytes, from, to);
    Wait(nullptr);
  }
  void Read(const void* from, size_t bytes, void* to) override {
    Copy(nullptr, bytes, from, to);
    Wait(nullptr);
  }
};

TEST(Linear, ByCublasFollowsWhatItSays) {
  ManagedMemory memory;
  const auto products = MakeCublasProducts();
  DeviceBuffer workspace(products->workspace_bytes());
  products->UseWorkspace(workspace.get());
  for (const NamedCase& named : LinearCases(*products)) {
    KernelCase linear = named.make(memory);
    std::vector<std::byte> bits[2];
    for (std::vector<std::byte>& of : bits) {
      linear.Prepare();
      linear.launch();
      Wait(nullptr);
      of = linear.Bits();
    }
    EXPECT_TRUE(bits[0] == bits[1]) << named.name;
    for (const Deviation& deviation : linear.Compare()) {
      EXPECT_LE(deviation.error, deviation.tolerance) << named.name << " " << deviation.of;
    }
  }
}

}  // namespace

void* AllocateOnDevice(size_t bytes) {
  void* memory = nullptr;
  const cudaError_t status = cudaMallocManaged(&memory, std::max<size_t>(bytes, 1));
  if (status != cudaSuccess) throw Error(std::string("CUDA: ") + cudaGetErrorString(status));
  return memory;
}

void FreeOnDevice(void* memory) { cudaFree(memory); }

std::unique_ptr<Products> MakeTestProducts(bool /*fuses*/) { return MakeCublasProducts(); }

}  // namespace pipelag::cuda

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status != cudaSuccess || devices == 0) {
    std::printf("no GPU: %s\n", cudaGetErrorString(status));
    return pipelag::cuda::kSkipped;
  }
  return RUN_ALL_TESTS();
}
