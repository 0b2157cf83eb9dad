#include "models/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "models/error.h"
#include "models/file.h"

namespace pipelag {

MappedFile::MappedFile(const std::filesystem::path& file) {
  if (!std::filesystem::is_regular_file(file)) {
    read_ = ReadFile(file);
    bytes_ = std::as_bytes(std::span(read_.data(), read_.size()));
    return;
  }
  const auto fail = [&] {
    throw Error(fmt::format("{}: cannot be read: {}", file.string(), std::strerror(errno)));
  };
  const int descriptor = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) fail();
  struct stat status {};
  const bool known = fstat(descriptor, &status) == 0;
  const auto size = static_cast<size_t>(known ? status.st_size : 0);
  if (size > 0) {
    void* at = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (at != MAP_FAILED) mapping_ = at;
  }
  const int error = errno;
  close(descriptor);
  errno = error;
  if (!known || (size > 0 && mapping_ == nullptr)) fail();
  if (size > 0) bytes_ = {static_cast<const std::byte*>(mapping_), size};
}

MappedFile::~MappedFile() {
  if (mapping_ != nullptr) munmap(mapping_, bytes_.size());
}

}  // namespace pipelag
