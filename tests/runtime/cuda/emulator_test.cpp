// The emulator finds what it is there to find, and multiplies fragments as matrices; the places of
// a tile's chunks, each its own and free of bank conflicts.
#include "tests/runtime/cuda/emulator/emulator.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

#include "models/random.h"
#include "runtime/cuda/kernels/instructions.cuh"
#include "runtime/cuda/kernels/tiles.cuh"
#include "runtime/cuda/launch.h"

namespace pipelag::cuda {
namespace {

/// Each thread hands its number to its mirror image.
template <bool kBarrier>
__global__ void MirrorKernel(int* out) {
  auto* shared = static_cast<int*>(DynamicShared());
  shared[threadIdx.x] = static_cast<int>(threadIdx.x);
  if constexpr (kBarrier) __syncthreads();
  out[threadIdx.x] = shared[63 - threadIdx.x];
}

template <bool kBarrier>
std::vector<int> Mirror(emulator::Order order) {
  const emulator::ThreadOrder threads(order);
  std::vector<int> out(64);
  Launch(nullptr, {1}, 64, 64 * sizeof(int), MirrorKernel<kBarrier>, out.data());
  return out;
}

TEST(Emulator, FindsAMissingBarrierByTheOrderOfThreads) {
  EXPECT_EQ(Mirror<true>(emulator::Order::kAscending), Mirror<true>(emulator::Order::kDescending));
  EXPECT_EQ(Mirror<true>(emulator::Order::kAscending)[3], 60);
  EXPECT_NE(Mirror<false>(emulator::Order::kAscending),
            Mirror<false>(emulator::Order::kDescending));
}

__global__ void HalfWaitsKernel() {
  if (threadIdx.x < 32) __syncthreads();
}

__global__ void LanesDivergeKernel() {
  if (threadIdx.x < 16) {
    __syncwarp();
  } else {
    (void)MatchAny(0);
  }
}

TEST(Emulator, RefusesThreadsThatWaitForEver) {
  EXPECT_THROW(Launch(nullptr, {1}, 64, 0, HalfWaitsKernel), InternalError);
  EXPECT_THROW(Launch(nullptr, {1}, 32, 0, LanesDivergeKernel), InternalError);
  // And goes on afterwards.
  EXPECT_EQ(Mirror<true>(emulator::Order::kShuffled)[0], 63);
}

template <bool kWait>
__global__ void CopyKernel(const Bfloat16* from, float* out) {
  auto* shared = static_cast<Bfloat16*>(DynamicShared());
  CopyAsync(DynamicSharedAddress() + 16 * threadIdx.x, from + 8 * threadIdx.x,
            threadIdx.x % 2 == 0);
  if constexpr (kWait) WaitForCopies();
  out[threadIdx.x] = ToFloat(shared[8 * threadIdx.x + 5]);
  WaitForCopies();
}

TEST(Emulator, CopiesArriveWhenTheyAreWaitedFor) {
  alignas(16) Bfloat16 from[32 * 8];
  for (Bfloat16& value : from) value = ToBfloat16(3);
  std::vector<float> out(32);
  Launch(nullptr, {1}, 32, sizeof from, CopyKernel<true>, from, out.data());
  EXPECT_EQ(out[4], 3);
  EXPECT_EQ(out[5], 0);
  Launch(nullptr, {1}, 32, sizeof from, CopyKernel<false>, from, out.data());
  EXPECT_TRUE(std::isnan(out[4]));
}

__global__ void BlocksKernel(int* out) {
  if (threadIdx.x == 0) {
    out[(blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x] += 1;
  }
}

TEST(Emulator, RunsEveryBlockOnce) {
  std::vector<int> out(24);
  Launch(nullptr, {2, 3, 4}, 32, 0, BlocksKernel, out.data());
  EXPECT_EQ(out, std::vector<int>(24, 1));
}

/// One product of 16×16 and 16×8 through shared memory: a and b (transposed) row by row.
__global__ void ProductKernel(const Bfloat16* a, const Bfloat16* b, bool transposed, float* out) {
  auto* shared = static_cast<Bfloat16*>(DynamicShared());
  const int lane = static_cast<int>(threadIdx.x);
  for (int i = lane; i < 256; i += 32) shared[i] = a[i];
  for (int i = lane; i < 256; i += 32) shared[256 + i] = b[i];
  __syncwarp();
  uint32_t left[4];
  uint32_t right[4];
  const auto at = [](int place) {
    return DynamicSharedAddress() + static_cast<SharedAddress>(place) * 2;
  };
  LoadMatrices(left, at(lane % 16 * 16 + lane / 16 * 8));
  if (transposed) {
    LoadMatrices(right, at(256 + (lane / 16 * 8 + lane % 8) * 16 + lane / 8 % 2 * 8));
  } else {
    LoadMatricesTransposed(right, at(256 + lane % 16 * 16 + lane / 16 * 8));
  }
  float d[2][4] = {};
  MultiplyAdd(d[0], left, right[0], right[1]);
  MultiplyAdd(d[1], left, right[2], right[3]);
  for (int n = 0; n < 2; ++n) {
    for (int c = 0; c < 4; ++c) {
      out[(lane / 4 + c / 2 * 8) * 16 + 8 * n + lane % 4 * 2 + c % 2] = d[n][c];
    }
  }
}

TEST(Emulator, FragmentsMultiplyAsMatrices) {
  // Small whole numbers, so that every order of sums is exact.
  std::vector<Bfloat16> a(256), b(256);
  for (uint64_t i = 0; i < 256; ++i) {
    a[i] = ToBfloat16(static_cast<float>(UniformBelow(RandomBits(1, i), 9)) - 4);
    b[i] = ToBfloat16(static_cast<float>(UniformBelow(RandomBits(2, i), 9)) - 4);
  }
  for (const bool transposed : {false, true}) {
    std::vector<float> out(256);
    Launch(nullptr, {1}, 32, 512 * sizeof(Bfloat16), ProductKernel, a.data(), b.data(), transposed,
           out.data());
    for (size_t row = 0; row < 16; ++row) {
      for (size_t col = 0; col < 16; ++col) {
        float sum = 0;
        for (size_t k = 0; k < 16; ++k) {
          sum += ToFloat(a[row * 16 + k]) * ToFloat(transposed ? b[col * 16 + k] : b[k * 16 + col]);
        }
        EXPECT_EQ(out[row * 16 + col], sum) << row << ' ' << col;
      }
    }
  }
}

template <int kSize>
void ExpectGoodPlaces() {
  constexpr int kRows = 32;
  constexpr int kChunks = kSize / kChunk;
  constexpr SharedAddress kTile = 1024 + 256;
  std::set<SharedAddress> places;
  for (int row = 0; row < kRows; ++row) {
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const SharedAddress place = TilePlace<kSize>(kTile, row, chunk);
      places.insert(place);
      EXPECT_EQ(place % kChunkBytes, 0u);
      EXPECT_LT(place - kTile, static_cast<unsigned>(kRows * kRowBytes<kSize>));
      const SharedAddress first = TilePlace<kSize>(kTile, row, chunk % 2);
      EXPECT_EQ(StepAlong(first, chunk / 2), place) << row << ' ' << chunk;
      if (row + 16 < kRows) {
        EXPECT_EQ(StepDown<kSize>(place, 16), TilePlace<kSize>(kTile, row + 16, chunk));
      }
    }
  }
  EXPECT_EQ(places.size(), static_cast<size_t>(kRows * kChunks));
  for (int row = 0; row < kRows; row += 8) {
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      // 32 banks of 4 bytes are eight chunks.
      std::set<SharedAddress> banks;
      for (int r = row; r < row + 8; ++r) {
        banks.insert(TilePlace<kSize>(kTile, r, chunk) / kChunkBytes % 8);
      }
      EXPECT_EQ(banks.size(), 8u) << row << ' ' << chunk;
    }
  }
}

TEST(Tiles, EightRowsAreReadFromAllBanks) {
  ExpectGoodPlaces<64>();
  ExpectGoodPlaces<128>();
}

TEST(Bfloat16, RoundsToTheNearestAndTiesToEven) {
  EXPECT_EQ(ToBfloat16(1.0f).bits, 0x3f80);
  EXPECT_EQ(ToBfloat16(1.0f + 1.0f / 256).bits, 0x3f80);
  EXPECT_EQ(ToBfloat16(1.0f + 3.0f / 256).bits, 0x3f82);
  EXPECT_EQ(ToBfloat16(-1.0f - 1.1f / 256).bits, 0xbf81);
  EXPECT_EQ(ToFloat(ToBfloat16(3.4e38f)), INFINITY);
  EXPECT_TRUE(std::isnan(ToFloat(ToBfloat16(NAN))));
  for (uint32_t bits = 0; bits < 0x7f80; ++bits) {
    const Bfloat16 value{static_cast<uint16_t>(bits)};
    ASSERT_EQ(ToBfloat16(ToFloat(value)).bits, bits);
  }
}

}  // namespace
}  // namespace pipelag::cuda
