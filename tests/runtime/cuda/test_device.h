// The device that the tests of stages run on: the emulator, or in tests/gpu a GPU. Its memory is
// the host's too, whenever the device has come to rest (Wait in runtime/cuda/memory.h).
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>

#include "runtime/cuda/products.h"

namespace pipelag::cuda {

/// Aligned as a DeviceStage wants it.
void* AllocateOnDevice(size_t bytes);
void FreeOnDevice(void* memory);

/// `fuses`: with epilogues, where one has the choice.
std::unique_ptr<Products> MakeTestProducts(bool fuses);

/// No byte longer than asked for, and full of NaNs.
class DeviceBuffer {
 public:
  explicit DeviceBuffer(size_t bytes) : data_(AllocateOnDevice(bytes)), bytes_(bytes) { Poison(); }
  void Poison() { std::memset(data_.get(), 0xff, bytes_); }
  void Zero() { std::memset(data_.get(), 0, bytes_); }

  void* get() { return data_.get(); }
  template <class T>
  T* as() {
    return static_cast<T*>(data_.get());
  }
  size_t bytes() const { return bytes_; }
  bool operator==(const DeviceBuffer& other) const {
    return bytes_ == other.bytes_ && std::memcmp(data_.get(), other.data_.get(), bytes_) == 0;
  }

 private:
  struct Free {
    void operator()(void* memory) const { FreeOnDevice(memory); }
  };
  std::unique_ptr<void, Free> data_;
  size_t bytes_;
};

}  // namespace pipelag::cuda
