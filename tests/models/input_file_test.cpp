// Files read piece by piece: what becomes of them meanwhile is an error, or does not matter.
#include "models/input_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>

#include "models/file.h"
#include "tests/reason.h"
#include "tests/scratch.h"

namespace pipelag {
namespace {

namespace fs = std::filesystem;

class Input : public testing::Test {
 protected:
  Input() : path_(Scratch("input")) { fs::remove(path_); }
  ~Input() override { fs::remove(path_); }

  static std::string Part(const InputFile& file, int64_t at, size_t size) {
    std::string part(size, '?');
    file.Read(at, std::as_writable_bytes(std::span(part)));
    return part;
  }

  fs::path path_;
};

TEST_F(Input, AnyPartIsRead) {
  WriteFile(path_, "0123456789");
  const InputFile file(path_);
  EXPECT_EQ(file.size(), 10);
  EXPECT_EQ(Part(file, 0, 10), "0123456789");
  EXPECT_EQ(Part(file, 7, 2), "78");
  EXPECT_EQ(Part(file, 10, 0), "");
}

TEST_F(Input, CutShortNamesFileAndByte) {
  WriteFile(path_, "0123456789");
  const InputFile file(path_);
  fs::resize_file(path_, 6);
  EXPECT_EQ(Part(file, 0, 6), "012345");
  for (const int64_t at : {0, 5, 6}) {
    EXPECT_EQ(ReasonOf([&] { Part(file, at, 4 + static_cast<size_t>(6 - at)); }),
              path_.string() +
                  ": has been cut short: it had 10 bytes when it was opened, and byte "
                  "6 is not there any more");
  }
}

TEST_F(Input, RemovedOrReplacedByAnotherIsReadOn) {
  WriteFile(path_, "0123456789");
  const InputFile file(path_);
  WriteFile(path_, "other");
  EXPECT_EQ(Part(file, 3, 5), "34567");
  fs::remove(path_);
  EXPECT_EQ(Part(file, 3, 5), "34567");
}

TEST_F(Input, ThatIsNoFileIsRefused) {
  EXPECT_THAT(ReasonOf([&] { InputFile{path_}; }),
              testing::HasSubstr(path_.string() + ": cannot be read: No such file"));
  EXPECT_EQ(ReasonOf([] { InputFile{"/dev/zero"}; }), "/dev/zero: is a device, not a file");
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_EQ(ReasonOf([&] { InputFile{path_}; }),
            path_.string() + ": is a pipe or a socket, not a file");
}

}  // namespace
}  // namespace pipelag
