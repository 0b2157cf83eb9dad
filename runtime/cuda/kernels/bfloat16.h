// bf16 as a type of storage: the upper half of a float (8 bits of precision). All arithmetic is in
// float; this file only converts. Needs no CUDA header, so that machines without the toolkit test
// the same kernels.
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define PIPELAG_ANYWHERE __host__ __device__
#else
#define PIPELAG_ANYWHERE
#endif

namespace pipelag::cuda {

struct Bfloat16 {
  uint16_t bits;
};

/// Exact.
PIPELAG_ANYWHERE inline float ToFloat(Bfloat16 value) {
  const uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
  float wide;
  memcpy(&wide, &bits, sizeof wide);
  return wide;
}
PIPELAG_ANYWHERE inline float ToFloat(float value) { return value; }

/// To the nearest, ties to even, as the processor's own conversion does; what is too large becomes
/// infinite, and every NaN the one 0x7fff.
PIPELAG_ANYWHERE inline Bfloat16 ToBfloat16(float value) {
#ifdef __CUDA_ARCH__
  Bfloat16 narrow;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(value));
  return narrow;
#else
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {0x7fff};
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
#endif
}

/// To the type T of storage, float or Bfloat16.
template <class T>
PIPELAG_ANYWHERE inline T FromFloat(float value);
template <>
PIPELAG_ANYWHERE inline float FromFloat<float>(float value) {
  return value;
}
template <>
PIPELAG_ANYWHERE inline Bfloat16 FromFloat<Bfloat16>(float value) {
  return ToBfloat16(value);
}

}  // namespace pipelag::cuda
