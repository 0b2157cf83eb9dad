#include "models/input_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "models/error.h"
#include "models/file.h"

namespace pipelag {

InputFile::InputFile(const std::filesystem::path& file) : path_(file) {
  CheckRegular(path_);
  descriptor_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat status {};
  if (descriptor_ < 0 || fstat(descriptor_, &status) != 0) {
    const int error = errno;
    if (descriptor_ >= 0) close(descriptor_);
    throw Error(fmt::format("{}: cannot be read: {}", path_.string(), std::strerror(error)));
  }
  size_ = status.st_size;
}

InputFile::~InputFile() { close(descriptor_); }

void InputFile::Read(int64_t at, std::span<std::byte> to) const {
  CHECK(at >= 0 && at + static_cast<int64_t>(to.size()) <= size_);
  while (!to.empty()) {
    const ssize_t n = pread(descriptor_, to.data(), to.size(), at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      throw Error(fmt::format("{}: cannot be read at byte {}: {}", path_.string(), at,
                              std::strerror(errno)));
    }
    if (n == 0) {
      throw Error(
          fmt::format("{}: has been cut short: it had {} bytes when it was opened, and byte "
                      "{} is not there any more",
                      path_.string(), size_, at));
    }
    at += n;
    to = to.subspan(static_cast<size_t>(n));
  }
}

}  // namespace pipelag
