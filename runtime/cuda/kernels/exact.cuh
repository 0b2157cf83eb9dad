// Floats whose operations are rounded one by one, as the CPU's optimizers round them: no compiler
// fuses a product with a sum behind them, whatever its flags, so that an update has the CPU's bits.
#pragma once

#include <cmath>

#include "runtime/cuda/launch.h"

namespace pipelag::cuda {

struct Exact {
  float value;
};

__device__ __forceinline__ Exact operator+(Exact a, Exact b) {
#ifdef __CUDA_ARCH__
  return {__fadd_rn(a.value, b.value)};
#else
  return {a.value + b.value};
#endif
}

__device__ __forceinline__ Exact operator-(Exact a, Exact b) {
#ifdef __CUDA_ARCH__
  return {__fsub_rn(a.value, b.value)};
#else
  return {a.value - b.value};
#endif
}

__device__ __forceinline__ Exact operator*(Exact a, Exact b) {
#ifdef __CUDA_ARCH__
  return {__fmul_rn(a.value, b.value)};
#else
  return {a.value * b.value};
#endif
}

__device__ __forceinline__ Exact operator/(Exact a, Exact b) {
#ifdef __CUDA_ARCH__
  return {__fdiv_rn(a.value, b.value)};
#else
  return {a.value / b.value};
#endif
}

__device__ __forceinline__ Exact SquareRoot(Exact a) {
#ifdef __CUDA_ARCH__
  return {__fsqrt_rn(a.value)};
#else
  return {std::sqrt(a.value)};
#endif
}

}  // namespace pipelag::cuda
