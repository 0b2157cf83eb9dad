// NCCL as a library that may be there or not; what can be asked of it without a GPU.
#include "runtime/cuda/nccl_library.h"

#include <gtest/gtest.h>

#include "models/error.h"

namespace pipelag::cuda {
namespace {

std::string ReasonOf(const char* file) {
  try {
    OpenNccl(file);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(NcclLibrary, IsLoadedWhenItIsAskedFor) {
  const std::string missing = ReasonOf("libnccl-of-nobody.so");
  EXPECT_EQ(missing.find("NCCL cannot be loaded: libnccl-of-nobody.so: cannot open"), 0U)
      << missing;
  // Another library by that name, or one that is too old.
  const std::string other = ReasonOf("libm.so.6");
  EXPECT_EQ(other.find("NCCL cannot be used: "), 0U) << other;
  EXPECT_NE(other.find("ncclGetVersion"), std::string::npos) << other;
  if (!ReasonOf(kNccl).empty()) GTEST_SKIP() << ReasonOf(kNccl);
  EXPECT_EQ(OpenNccl()->name().find("NCCL 2."), 0U) << OpenNccl()->name();
}

}  // namespace
}  // namespace pipelag::cuda
