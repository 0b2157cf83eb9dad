// Memory of the emulated device: the process's own, of exactly the size asked for.
#pragma once

#include <cstring>
#include <new>

#include "tests/runtime/cuda/kernel_case.h"

namespace pipelag::cuda {

class EmulatedMemory : public KernelMemory {
 public:
  std::shared_ptr<std::byte> Allocate(size_t bytes) override {
    constexpr std::align_val_t kAlignment{256};
    return {new (kAlignment) std::byte[bytes],
            [](std::byte* memory) { operator delete[](memory, kAlignment); }};
  }
  void Write(const void* from, size_t bytes, void* to) override { std::memcpy(to, from, bytes); }
  void Read(const void* from, size_t bytes, void* to) override { std::memcpy(to, from, bytes); }
};

}  // namespace pipelag::cuda
