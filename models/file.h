// Files read and written whole: nothing is ever left half written.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace pipelag {

/// The whole file. Throws Error naming it if it cannot be read.
std::string ReadFile(const std::filesystem::path& file);

/// Writes to a temporary name beside `file`, flushes it to disk, then renames. On failure the old
/// content stands, the temporary is gone, and an Error names the file.
void WriteFile(const std::filesystem::path& file, std::string_view content);

/// Throws Error if `file` could not be written now (no such folder, no permission, a folder):
/// called before long work whose result goes there. Changes nothing.
void CheckWritable(const std::filesystem::path& file);

}  // namespace pipelag
