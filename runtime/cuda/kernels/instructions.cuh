// The device's instructions that kernels use, behind functions that the emulator of the tests has
// too (tests/runtime/cuda/emulator/instructions.h): nothing here decides anything. A warp's
// functions are called by all of its 32 lanes together.
#pragma once

#include <cstdint>

#include "runtime/cuda/kernels/bfloat16.h"

#ifdef __CUDACC__

#define PIPELAG_UNROLL _Pragma("unroll")
#define PIPELAG_UNROLL_BY_4 _Pragma("unroll 4")

namespace pipelag::cuda {

/// What one thread moves at best in one instruction.
struct Words {
  uint32_t word[4];
};

/// `from` and `to` are aligned to 16 bytes; `to` is not in shared memory.
__device__ __forceinline__ Words LoadWords(const void* from) {
  const uint4 v = *static_cast<const uint4*>(from);
  return {{v.x, v.y, v.z, v.w}};
}
__device__ __forceinline__ void StoreWords(const Words& words, void* to) {
  // The compiler takes an assignment apart into four stores in places.
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(__cvta_generic_to_global(to)), "r"(words.word[0]), "r"(words.word[1]),
                 "r"(words.word[2]), "r"(words.word[3])
               : "memory");
}

__device__ __forceinline__ float AsFloat(uint32_t bits) { return __uint_as_float(bits); }
__device__ __forceinline__ uint32_t AsBits(float value) { return __float_as_uint(value); }

/// The block's shared memory whose size the launch gave, aligned to 1024 bytes.
__device__ __forceinline__ void* DynamicShared() {
  extern __shared__ __align__(1024) unsigned char pipelag_dynamic_shared[];
  return pipelag_dynamic_shared;
}

/// A place in shared memory, in bytes: half of a pointer's registers, and less arithmetic.
using SharedAddress = uint32_t;

/// Of DynamicShared().
__device__ __forceinline__ SharedAddress DynamicSharedAddress() {
  return static_cast<SharedAddress>(__cvta_generic_to_shared(DynamicShared()));
}

constexpr unsigned kWholeWarp = 0xffffffffu;

/// The value of lane (own ^ mask).
template <class T>
__device__ __forceinline__ T ShuffleXor(T value, int mask) {
  return __shfl_xor_sync(kWholeWarp, value, mask);
}

/// The lanes that have the same value, one bit each.
__device__ __forceinline__ uint32_t MatchAny(uint32_t value) {
  return __match_any_sync(kWholeWarp, value);
}

__device__ __forceinline__ int CountBits(uint32_t bits) { return __popc(bits); }

/// 2^x with a relative error of about 2^-22; subnormal results are zero.
__device__ __forceinline__ float FastExp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Two numbers rounded to bf16, `low` in the lower half.
__device__ __forceinline__ uint32_t PackBfloat16(float low, float high) {
  uint32_t both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}

/// Four bytes to shared memory, and sixteen from there; both aligned.
__device__ __forceinline__ void StoreShared(uint32_t word, SharedAddress to) {
  asm volatile("st.shared.u32 [%0], %1;" : : "r"(to), "r"(word) : "memory");
}
__device__ __forceinline__ Words LoadShared(SharedAddress from) {
  Words words;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.word[0]), "=r"(words.word[1]), "=r"(words.word[2]), "=r"(words.word[3])
               : "r"(from)
               : "memory");
  return words;
}

/// d += a · b for a 16×16, b 16×8 in bf16, d 16×8 in float, spread over the warp (PTX ISA,
/// mma.m16n8k16): with g = lane / 4 and i = lane mod 4, a[0] holds columns 2i, 2i+1 of row g, a[1]
/// of row g + 8, a[2] and a[3] the same of columns 2i + 8, 2i + 9; b0 holds rows 2i, 2i+1 of column
/// g, b1 rows 2i + 8, 2i + 9; d[0], d[1] are columns 2i, 2i+1 of row g, d[2], d[3] of row g + 8.
__device__ __forceinline__ void MultiplyAdd(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                            uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Four 8×8 matrices of bf16 from shared memory. Lane l gives the address of row l mod 8 of matrix
/// l / 8 (16 bytes, aligned); to[m] becomes columns 2i, 2i+1 of row g of matrix m.
__device__ __forceinline__ void LoadMatrices(uint32_t (&to)[4], SharedAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row));
}

/// The same of the transposed matrices: to[m] becomes rows 2i, 2i+1 of column g.
__device__ __forceinline__ void LoadMatricesTransposed(uint32_t (&to)[4], SharedAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row));
}

/// Starts to copy 16 bytes, both sides aligned to them, from global to shared memory; writes zeros
/// and reads nothing if not `valid`. There only after WaitForCopies (for this thread) and a barrier
/// (for others).
__device__ __forceinline__ void CopyAsync(SharedAddress to, const Bfloat16* from, bool valid) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(to), "l"(from), "r"(bytes)
               : "memory");
}

/// Waits for every copy that this thread has started.
__device__ __forceinline__ void WaitForCopies() {
  asm volatile("cp.async.wait_all;" : : : "memory");
}

}  // namespace pipelag::cuda

#else

#define PIPELAG_UNROLL
#define PIPELAG_UNROLL_BY_4

#endif
