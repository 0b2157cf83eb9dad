// The kernels of sums.h: each thread adds what lies a whole grid apart.
#include <algorithm>

#include "runtime/cuda/kernels/sums.h"
#include "runtime/cuda/launch.h"

namespace pipelag::cuda {
namespace {

constexpr int kThreads = 256;
/// Enough to fill any GPU; each then adds several.
constexpr int64_t kMostBlocks = 4096;

template <class Value>
__global__ void AddKernel(Value* sum, const Value* summand, int64_t count) {
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += stride) {
    sum[i] += summand[i];
  }
}

template <class Value>
void AddAny(Stream stream, Value* sum, const Value* summand, int64_t count) {
  const Grid grid{std::min(Blocks(count, kThreads), kMostBlocks), 1, 1};
  Launch(stream, grid, kThreads, 0, AddKernel<Value>, sum, summand, count);
}

}  // namespace

void Add(Stream stream, float* sum, const float* summand, int64_t count) {
  AddAny(stream, sum, summand, count);
}

void Add(Stream stream, double* sum, const double* summand, int64_t count) {
  AddAny(stream, sum, summand, count);
}

}  // namespace pipelag::cuda
