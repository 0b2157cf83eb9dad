// Names for files that tests leave for a moment: tests of one program run side by side, each in a
// process of its own.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

namespace pipelag {

inline std::filesystem::path Scratch(const std::string& name) {
  return std::filesystem::path(testing::TempDir()) / (std::to_string(getpid()) + "-" + name);
}

}  // namespace pipelag
