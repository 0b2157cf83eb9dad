// What kernels share: loads and stores of several numbers at a time as floats, and reductions over
// a warp in a fixed order.
#pragma once

#include <cstdint>

#include "runtime/cuda/kernels/bfloat16.h"
#include "runtime/cuda/kernels/instructions.cuh"
#include "runtime/cuda/launch.h"

namespace pipelag::cuda {

/// Numbers of type T in the 16 bytes that a thread moves at once.
template <class T>
constexpr int kPack = 16 / static_cast<int>(sizeof(T));

/// kWidth numbers as floats: one, or packs of 16 bytes, aligned to them.
template <class T, int kWidth>
__device__ __forceinline__ void Load(const T* from, float (&to)[kWidth]) {
  if constexpr (kWidth == 1) {
    to[0] = ToFloat(*from);
  } else {
    static_assert(kWidth % kPack<T> == 0);
    PIPELAG_UNROLL
    for (int k = 0; k < kWidth; k += kPack<T>) {
      const Words words = LoadWords(from + k);
      PIPELAG_UNROLL
      for (int w = 0; w < 4; ++w) {
        if constexpr (sizeof(T) == 4) {
          to[k + w] = AsFloat(words.word[w]);
        } else {
          to[k + 2 * w] = AsFloat(words.word[w] << 16);
          to[k + 2 * w + 1] = AsFloat(words.word[w] & 0xffff0000u);
        }
      }
    }
  }
}

/// The same back, rounded to T.
template <class T, int kWidth>
__device__ __forceinline__ void Store(const float (&from)[kWidth], T* to) {
  if constexpr (kWidth == 1) {
    *to = FromFloat<T>(from[0]);
  } else {
    static_assert(kWidth % kPack<T> == 0);
    PIPELAG_UNROLL
    for (int k = 0; k < kWidth; k += kPack<T>) {
      Words words;
      PIPELAG_UNROLL
      for (int w = 0; w < 4; ++w) {
        if constexpr (sizeof(T) == 4) {
          words.word[w] = AsBits(from[k + w]);
        } else {
          words.word[w] = PackBfloat16(from[k + 2 * w], from[k + 2 * w + 1]);
        }
      }
      StoreWords(words, to + k);
    }
  }
}

/// What is left of the numbers after rounding to T.
template <class T, int kWidth>
__device__ __forceinline__ void Round(float (&values)[kWidth]) {
  PIPELAG_UNROLL
  for (int k = 0; k < kWidth; ++k) values[k] = ToFloat(FromFloat<T>(values[k]));
}

/// Sum over groups of kLanes neighbouring lanes, the same in each of them.
template <int kLanes = kWarp, class Number>
__device__ __forceinline__ Number WarpSum(Number value) {
  PIPELAG_UNROLL
  for (int mask = kLanes / 2; mask > 0; mask /= 2) value += ShuffleXor(value, mask);
  return value;
}

template <int kLanes = kWarp>
__device__ __forceinline__ float WarpMax(float value) {
  PIPELAG_UNROLL
  for (int mask = kLanes / 2; mask > 0; mask /= 2) value = fmaxf(value, ShuffleXor(value, mask));
  return value;
}

constexpr float kLog2E = 1.4426950408889634f;

/// e^x: in float to the last bit or two, in bf16 as the fast instruction has it.
template <class T>
__device__ __forceinline__ float Exponential(float x) {
  if constexpr (sizeof(T) == 4) {
    return expf(x);
  } else {
    return FastExp2(x * kLog2E);
  }
}

/// Calls body.operator()<width>() with packs of T where `sizes`, in elements, are multiples of one,
/// else with single numbers.
template <class T, class Body, class... Sizes>
void WithWidth(Body body, Sizes... sizes) {
  if (((sizes % kPack<T> == 0) && ...)) {
    body.template operator()<kPack<T>>();
  } else {
    body.template operator()<1>();
  }
}

}  // namespace pipelag::cuda
