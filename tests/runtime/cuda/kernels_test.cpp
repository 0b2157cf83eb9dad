// Every kernel of the device on the emulator: beside the CPU's network, and the same to the last
// bit whatever the order of its threads.
#include <gtest/gtest.h>

#include "tests/runtime/cuda/emulated_memory.h"
#include "tests/runtime/cuda/emulator/emulator.h"
#include "tests/runtime/cuda/kernel_case.h"

namespace pipelag::cuda {

void PrintTo(const NamedCase& of, std::ostream* to) { *to << of.name; }

namespace {

class Kernels : public testing::TestWithParam<NamedCase> {};
INSTANTIATE_TEST_SUITE_P(Emulated, Kernels, testing::ValuesIn(SmallCases()),
                         [](const auto& test) { return test.param.name; });

std::vector<std::byte> BitsOf(KernelCase& kernel, emulator::Order order) {
  const emulator::ThreadOrder threads(order);
  kernel.Prepare();
  kernel.launch();
  return kernel.Bits();
}

TEST_P(Kernels, FollowTheCpuInAnyOrderOfThreads) {
  EmulatedMemory memory;
  KernelCase kernel = GetParam().make(memory);
  const std::vector<std::byte> bits = BitsOf(kernel, emulator::Order::kAscending);
  for (const Deviation& deviation : kernel.Compare()) {
    EXPECT_LE(deviation.error, deviation.tolerance) << deviation.of;
  }
  EXPECT_TRUE(bits == BitsOf(kernel, emulator::Order::kDescending));
  EXPECT_TRUE(bits == BitsOf(kernel, emulator::Order::kShuffled));
}

}  // namespace
}  // namespace pipelag::cuda
