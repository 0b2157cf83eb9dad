// A file that is read where it lies, piece by piece, as it is needed: one of any size is open at
// once. Knows no format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace pipelag {

/// Not mapped: whatever becomes of the file meanwhile is an error of the one who reads it, and no
/// signal to the process. It may be removed or replaced by another of its name, and is read on.
class InputFile {
 public:
  /// Throws Error naming the file if it cannot be read or is no regular file.
  explicit InputFile(const std::filesystem::path& file);
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  ~InputFile();

  const std::filesystem::path& path() const { return path_; }
  /// In bytes, as it was opened.
  int64_t size() const { return size_; }
  /// Fills `to` with the bytes from `at` on, which must have been there when it was opened; several
  /// threads may do so at a time. Throws Error naming file and byte if they cannot be read, or are
  /// no longer there.
  void Read(int64_t at, std::span<std::byte> to) const;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  int64_t size_ = 0;
};

}  // namespace pipelag
