// The words of test_device.h and of runtime/cuda/memory.h where the device is the host: all has
// happened at once.
#include <cstring>
#include <new>

#include "runtime/cuda/memory.h"
#include "runtime/device/device_stage.h"
#include "tests/runtime/cuda/plain_products.h"
#include "tests/runtime/cuda/test_device.h"

namespace pipelag::cuda {
namespace {

constexpr std::align_val_t kAlignment{DeviceStage::kAlignment};

}  // namespace

void* AllocateOnDevice(size_t bytes) { return operator new[](bytes, kAlignment); }

void FreeOnDevice(void* memory) { operator delete[](memory, kAlignment); }

std::unique_ptr<Products> MakeTestProducts(bool fuses) { return MakePlainProducts(fuses); }

void Copy(Stream /*stream*/, size_t bytes, const void* from, void* to) {
  std::memmove(to, from, bytes);
}

void Clear(Stream /*stream*/, size_t bytes, void* to) { std::memset(to, 0, bytes); }

void Wait(Stream /*stream*/) {}

}  // namespace pipelag::cuda
