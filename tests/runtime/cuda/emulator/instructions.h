// The emulator's side of runtime/cuda/kernels/instructions.cuh: the same functions with the same
// contracts. What the device demands of addresses is checked here.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "models/error.h"
#include "runtime/cuda/kernels/bfloat16.h"

namespace pipelag::cuda {

struct Words {
  uint32_t word[4];
};

inline void CheckAligned(const void* address, size_t bytes) {
  CHECK(reinterpret_cast<uintptr_t>(address) % bytes == 0);
}

inline Words LoadWords(const void* from) {
  CheckAligned(from, 16);
  Words words;
  std::memcpy(&words, from, sizeof words);
  return words;
}

inline void StoreWords(const Words& words, void* to) {
  CheckAligned(to, 16);
  std::memcpy(to, &words, sizeof words);
}

inline float AsFloat(uint32_t bits) { return std::bit_cast<float>(bits); }
inline uint32_t AsBits(float value) { return std::bit_cast<uint32_t>(value); }

inline void* DynamicShared() { return emulator::SharedMemory(); }

using SharedAddress = uint32_t;

/// Not zero, as on the device; AtShared checks that all that is meant lies in the block's memory.
inline SharedAddress DynamicSharedAddress() { return 1024; }

inline std::byte* AtShared(SharedAddress address, size_t bytes) {
  CHECK(address % bytes == 0 && address >= DynamicSharedAddress());
  const size_t offset = address - DynamicSharedAddress();
  CHECK(offset + bytes <= emulator::SharedBytes());
  return static_cast<std::byte*>(DynamicShared()) + offset;
}

// NOLINTBEGIN(bugprone-reserved-identifier): the language's own.
inline void __syncthreads() { emulator::WaitForBlock(); }
inline void __syncwarp() { emulator::Exchange(nullptr, 0, nullptr, 0, nullptr); }
// NOLINTEND(bugprone-reserved-identifier)

template <class T>
T ShuffleXor(T value, int mask) {
  struct Input {
    T value;
    int mask;
  };
  const Input input{value, mask};
  T output;
  emulator::Exchange(&input, sizeof input, &output, sizeof output,
                     [](const std::byte* inputs, std::byte* outputs) {
                       for (size_t lane = 0; lane < 32; ++lane) {
                         Input own;
                         std::memcpy(&own, inputs + lane * sizeof(Input), sizeof own);
                         const size_t other = lane ^ static_cast<size_t>(own.mask);
                         std::memcpy(outputs + lane * sizeof(T), inputs + other * sizeof(Input),
                                     sizeof(T));
                       }
                     });
  return output;
}

inline uint32_t MatchAny(uint32_t value) {
  uint32_t output;
  emulator::Exchange(&value, sizeof value, &output, sizeof output,
                     [](const std::byte* inputs, std::byte* outputs) {
                       uint32_t values[32];
                       std::memcpy(values, inputs, sizeof values);
                       for (size_t lane = 0; lane < 32; ++lane) {
                         uint32_t peers = 0;
                         for (size_t other = 0; other < 32; ++other) {
                           if (values[other] == values[lane]) peers |= 1u << other;
                         }
                         std::memcpy(outputs + lane * sizeof peers, &peers, sizeof peers);
                       }
                     });
  return output;
}

inline int CountBits(uint32_t bits) { return std::popcount(bits); }

inline float FastExp2(float x) {
  const float y = std::exp2(x);
  return std::fpclassify(y) == FP_SUBNORMAL ? 0 : y;
}

inline uint32_t PackBfloat16(float low, float high) {
  return static_cast<uint32_t>(ToBfloat16(low).bits) | static_cast<uint32_t>(ToBfloat16(high).bits)
                                                           << 16;
}

inline void StoreShared(uint32_t word, SharedAddress to) {
  std::memcpy(AtShared(to, sizeof word), &word, sizeof word);
}

inline Words LoadShared(SharedAddress from) {
  Words words;
  std::memcpy(&words, AtShared(from, sizeof words), sizeof words);
  return words;
}

/// Of the two numbers in a register.
inline float HalfOf(uint32_t both, size_t half) {
  return AsFloat(half == 0 ? both << 16 : both & 0xffff0000u);
}

/// Gathers the fragments of all lanes into matrices, multiplies, and deals the result out again.
inline void MultiplyAdd(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  struct Fragment {
    float d[4];
    uint32_t a[4];
    uint32_t b[2];
  };
  Fragment input{{d[0], d[1], d[2], d[3]}, {a[0], a[1], a[2], a[3]}, {b0, b1}};
  emulator::Exchange(
      &input, sizeof input, d, sizeof d, [](const std::byte* inputs, std::byte* outputs) {
        float left[16][16];
        float right[16][8];
        float product[16][8];
        Fragment of[32];
        std::memcpy(of, inputs, sizeof of);
        for (size_t lane = 0; lane < 32; ++lane) {
          const size_t g = lane / 4;
          const size_t i = lane % 4;
          for (size_t r = 0; r < 4; ++r) {
            for (size_t half = 0; half < 2; ++half) {
              left[g + r % 2 * 8][2 * i + r / 2 * 8 + half] = HalfOf(of[lane].a[r], half);
            }
            product[g + r / 2 * 8][2 * i + r % 2] = of[lane].d[r];
          }
          for (size_t r = 0; r < 2; ++r) {
            for (size_t half = 0; half < 2; ++half) {
              right[2 * i + 8 * r + half][g] = HalfOf(of[lane].b[r], half);
            }
          }
        }
        for (size_t row = 0; row < 16; ++row) {
          for (size_t k = 0; k < 16; ++k) {
            for (size_t col = 0; col < 8; ++col) product[row][col] += left[row][k] * right[k][col];
          }
        }
        for (size_t lane = 0; lane < 32; ++lane) {
          float result[4];
          for (size_t r = 0; r < 4; ++r) {
            result[r] = product[lane / 4 + r / 2 * 8][2 * (lane % 4) + r % 2];
          }
          std::memcpy(outputs + lane * sizeof result, result, sizeof result);
        }
      });
}

template <bool kTransposed>
void LoadMatricesAs(uint32_t (&to)[4], SharedAddress address) {
  const std::byte* row = AtShared(address, 16);
  emulator::Exchange(
      &row, sizeof row, to, sizeof to, [](const std::byte* inputs, std::byte* outputs) {
        Bfloat16 rows[32][8];
        for (size_t lane = 0; lane < 32; ++lane) {
          const std::byte* from;
          std::memcpy(&from, inputs + lane * sizeof from, sizeof from);
          std::memcpy(rows[lane], from, sizeof rows[lane]);
        }
        for (size_t lane = 0; lane < 32; ++lane) {
          uint32_t result[4];
          for (size_t m = 0; m < 4; ++m) {
            const size_t g = lane / 4;
            const size_t i = lane % 4 * 2;
            const Bfloat16 low = kTransposed ? rows[8 * m + i][g] : rows[8 * m + g][i];
            const Bfloat16 high = kTransposed ? rows[8 * m + i + 1][g] : rows[8 * m + g][i + 1];
            result[m] = static_cast<uint32_t>(low.bits) | static_cast<uint32_t>(high.bits) << 16;
          }
          std::memcpy(outputs + lane * sizeof result, result, sizeof result);
        }
      });
}

inline void LoadMatrices(uint32_t (&to)[4], SharedAddress row) { LoadMatricesAs<false>(to, row); }
inline void LoadMatricesTransposed(uint32_t (&to)[4], SharedAddress row) {
  LoadMatricesAs<true>(to, row);
}

inline void CopyAsync(SharedAddress to, const Bfloat16* from, bool valid) {
  CheckAligned(from, 16);
  emulator::StartCopy(AtShared(to, 16), from, 16, valid);
}

inline void WaitForCopies() { emulator::FinishCopies(); }

}  // namespace pipelag::cuda
