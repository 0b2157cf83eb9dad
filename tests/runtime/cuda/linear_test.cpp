// Linear layers on the emulator, with products that take epilogues and with ones that do not.
#include <gtest/gtest.h>

#include "tests/runtime/cuda/emulated_memory.h"
#include "tests/runtime/cuda/linear_cases.h"
#include "tests/runtime/cuda/plain_products.h"

namespace pipelag::cuda {
namespace {

TEST(Linear, FollowsWhatItSaysEitherWay) {
  EmulatedMemory memory;
  for (const bool fuses : {false, true}) {
    const auto products = MakePlainProducts(fuses);
    for (const NamedCase& named : LinearCases(*products)) {
      KernelCase linear = named.make(memory);
      linear.Prepare();
      linear.launch();
      for (const Deviation& deviation : linear.Compare()) {
        EXPECT_LE(deviation.error, deviation.tolerance)
            << named.name << " " << deviation.of << (fuses ? ", fused" : "");
      }
    }
  }
}

}  // namespace
}  // namespace pipelag::cuda
