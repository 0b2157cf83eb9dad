// Files written whole: what a reader, a link or a failure sees.
#include "models/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>

#include "models/error.h"
#include "tests/scratch.h"

namespace pipelag {
namespace {

namespace fs = std::filesystem;

class File : public testing::Test {
 protected:
  File() : folder_(Scratch("files")) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~File() override { fs::remove_all(folder_); }

  size_t Entries() const {
    return static_cast<size_t>(
        std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }

  fs::path folder_;
};

TEST_F(File, IsReplacedWholeAndLeavesNothingBeside) {
  WriteFile(folder_ / "a", "a long first content");
  WriteFile(folder_ / "a", "b");
  EXPECT_EQ(ReadFile(folder_ / "a"), "b");
  EXPECT_EQ(Entries(), 1U);
}

TEST_F(File, BehindALinkIsWrittenAndTheLinkStays) {
  fs::create_directory(folder_ / "elsewhere");
  WriteFile(folder_ / "elsewhere" / "real", "old");
  fs::create_symlink("elsewhere/real", folder_ / "link");
  WriteFile(folder_ / "link", "new");
  EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
  EXPECT_EQ(ReadFile(folder_ / "elsewhere" / "real"), "new");
  EXPECT_EQ(Entries(), 2U);
}

TEST_F(File, ThatCannotBeWrittenIsNamed) {
  EXPECT_THROW(WriteFile(folder_, "x"), Error);
  EXPECT_THROW(WriteFile(folder_ / "none" / "a", "x"), Error);
  EXPECT_EQ(Entries(), 0U);
}

TEST_F(File, ThatIsNoFileIsNotRead) {
  EXPECT_THROW(ReadFile(folder_), Error);
  EXPECT_THROW(ReadFile("/dev/zero"), Error);
  EXPECT_THROW(ReadFile(folder_ / "none"), Error);
}

TEST(Files, APipeIsNoFileToRead) {
  const std::filesystem::path pipe = Scratch("pipe");
  std::filesystem::remove(pipe);
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  try {
    ReadFile(pipe);
    FAIL() << "was read";
  } catch (const Error& error) {
    EXPECT_EQ(error.what(), pipe.string() + ": is a pipe or a socket, not a file");
  }
  std::filesystem::remove(pipe);
}

}  // namespace
}  // namespace pipelag
