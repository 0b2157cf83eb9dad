// Files read and written whole: nothing is ever left half written.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace pipelag {

/// A file that is there whole or not at all: written piece by piece under a temporary name beside
/// its own, which it takes in the end. Errors name the file.
class OutputFile {
 public:
  explicit OutputFile(const std::filesystem::path& file);
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  /// Without Commit nothing is left of it, and what stood there before still stands.
  ~OutputFile();

  void Write(std::string_view content);
  /// Flushes to disk, unless nothing depends on its surviving a loss of power, then renames. The
  /// folder's own entry is SyncFolder's business.
  void Commit(bool flush = true);

 private:
  [[noreturn]] void Fail(const char* what) const;

  std::filesystem::path target_;
  std::string temporary_;
  int descriptor_ = -1;
  bool committed_ = false;
};

/// Makes what was created, renamed or removed in a folder last through a loss of power.
void SyncFolder(const std::filesystem::path& folder);

/// Throws Error naming what is there under that name and is no regular file: a pipe would block.
void CheckRegular(const std::filesystem::path& file);

/// The whole file. Throws Error naming it if it cannot be read, or is no regular file.
std::string ReadFile(const std::filesystem::path& file);

/// Writes to a temporary name beside `file`, flushes it to disk, then renames. On failure the old
/// content stands, the temporary is gone, and an Error names the file.
void WriteFile(const std::filesystem::path& file, std::string_view content);

/// Before the process is ended, whatever its threads are at: removes what they have begun to write
/// and lets none begin or put in place any other.
void RemoveUnfinishedFiles();

/// Throws Error if `file` could not be written now (no such folder, no permission, a folder):
/// called before long work whose result goes there. Changes nothing.
void CheckWritable(const std::filesystem::path& file);

}  // namespace pipelag
