// A file read through memory: pages come when they are touched, and nothing is copied. Knows no
// format.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

namespace pipelag {

/// The whole content, read-only, at an address that is a multiple of the page size. A file that is
/// shortened meanwhile ends the process with a signal: the price of not copying it.
class MappedFile {
 public:
  /// Throws Error naming the file if it cannot be read or is a folder or a device. A pipe is read
  /// to its end instead.
  explicit MappedFile(const std::filesystem::path& file);
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
  void* mapping_ = nullptr;
  std::string read_;  ///< what a pipe gave
};

}  // namespace pipelag
