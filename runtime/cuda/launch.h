// The one way in which a kernel is started. nvcc compiles it for the device; the tests include
// tests/runtime/cuda/emulator/emulator.h first, which defines the words of the kernel language and
// runs the same kernels on the CPU. For .cu files only: host code calls the functions declared in
// runtime/cuda/kernels/*.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "models/error.h"
#include "runtime/cuda/kernels/bfloat16.h"
#include "runtime/cuda/kernels/stream.h"

#ifdef __CUDACC__
#include <cuda_runtime.h>
#elif !defined(PIPELAG_KERNEL_EMULATOR)
#error "Kernels are compiled by nvcc, or by the tests behind their emulator."
#endif

namespace pipelag::cuda {

/// Blocks of a launch; x varies fastest in the order in which the device starts them.
struct Grid {
  int64_t x = 1;
  int64_t y = 1;
  int64_t z = 1;
};

constexpr int kWarp = 32;

/// Blocks of `each` that cover `all`.
PIPELAG_ANYWHERE constexpr int64_t Blocks(int64_t all, int64_t each) {
  return (all + each - 1) / each;
}

/// Enqueues kernel(arguments…) on `stream` and returns at once. `threads` per block is a multiple
/// of a warp; `shared_bytes` is what DynamicShared() points to in each block. A grid without blocks
/// is no launch. Throws Error if the device refuses the launch; what fails later, the stream
/// reports.
template <class... Parameters, class... Arguments>
void Launch(Stream stream, Grid grid, int threads, size_t shared_bytes,
            void (*kernel)(Parameters...), const Arguments&... arguments) {
  static_assert(sizeof...(Parameters) == sizeof...(Arguments));
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  CHECK(grid.x <= INT32_MAX && grid.y <= 65535 && grid.z <= 65535 && threads % kWarp == 0);
#ifdef __CUDACC__
  // What a kernel declares itself counts too: both may take 48 KiB without asking.
  constexpr size_t kWithoutAsking = 32 * 1024;
  cudaError_t status = cudaSuccess;
  if (shared_bytes > kWithoutAsking) {
    status = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                  cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(shared_bytes));
  }
  if (status == cudaSuccess) {
    kernel<<<dim3(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y),
                  static_cast<unsigned>(grid.z)),
             static_cast<unsigned>(threads), shared_bytes, static_cast<cudaStream_t>(stream)>>>(
        static_cast<Parameters>(arguments)...);
    status = cudaGetLastError();
  }
  if (status != cudaSuccess) {
    throw Error(std::string("CUDA refuses to start a kernel: ") + cudaGetErrorString(status));
  }
#else
  emulator::Run(stream, {grid.x, grid.y, grid.z}, threads, shared_bytes,
                [&] { kernel(static_cast<Parameters>(arguments)...); });
#endif
}

}  // namespace pipelag::cuda
