#include "runtime/cuda/memory.h"

#include <cuda_runtime_api.h>

#include <string>

#include "models/error.h"

namespace pipelag::cuda {
namespace {

void Expect(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw Error(std::string("CUDA cannot ") + what + ": " + cudaGetErrorString(status));
}

}  // namespace

void Copy(Stream stream, size_t bytes, const void* from, void* to) {
  Expect(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, static_cast<cudaStream_t>(stream)),
         "copy memory");
}

void Clear(Stream stream, size_t bytes, void* to) {
  Expect(cudaMemsetAsync(to, 0, bytes, static_cast<cudaStream_t>(stream)), "clear memory");
}

void Wait(Stream stream) {
  Expect(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)), "finish its work");
}

}  // namespace pipelag::cuda
