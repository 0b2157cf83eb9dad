#include "models/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <mutex>
#include <set>
#include <sstream>

#include "models/error.h"

namespace pipelag {
namespace {

std::filesystem::path FolderOf(const std::filesystem::path& file) {
  return file.has_parent_path() ? file.parent_path() : std::filesystem::path(".");
}

/// Temporary files of this process: it may be ended while any thread is at any of them.
struct Unfinished {
  std::mutex mutex;  // never free again once all have been removed
  std::set<std::string> names;
};

Unfinished& OfThisProcess() {
  static Unfinished unfinished;
  return unfinished;
}

}  // namespace

/// A link stays one: what it points to is written.
OutputFile::OutputFile(const std::filesystem::path& file)
    : target_(std::filesystem::is_symlink(file) ? std::filesystem::weakly_canonical(file) : file),
      temporary_(target_.string() + fmt::format(".{}.tmp", getpid())) {
  Unfinished& unfinished = OfThisProcess();
  const std::lock_guard lock(unfinished.mutex);
  descriptor_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor_ < 0) Fail("cannot be created");
  unfinished.names.insert(temporary_);
}

OutputFile::~OutputFile() {
  close(descriptor_);
  if (committed_) return;
  Unfinished& unfinished = OfThisProcess();
  const std::lock_guard lock(unfinished.mutex);
  unlink(temporary_.c_str());
  unfinished.names.erase(temporary_);
}

void OutputFile::Write(std::string_view content) {
  while (!content.empty()) {
    const ssize_t n = write(descriptor_, content.data(), content.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) Fail("cannot be written");
    content.remove_prefix(static_cast<size_t>(n));
  }
}

void OutputFile::Commit(bool flush) {
  if (flush && fsync(descriptor_) != 0) Fail("cannot be flushed to disk");
  Unfinished& unfinished = OfThisProcess();
  const std::lock_guard lock(unfinished.mutex);
  if (rename(temporary_.c_str(), target_.c_str()) != 0) Fail("cannot be put in place");
  unfinished.names.erase(temporary_);
  committed_ = true;
}

void OutputFile::Fail(const char* what) const {
  throw Error(fmt::format("{}: {}: {}", target_.string(), what, std::strerror(errno)));
}

void RemoveUnfinishedFiles() {
  Unfinished& unfinished = OfThisProcess();
  unfinished.mutex.lock();
  for (const std::string& name : unfinished.names) unlink(name.c_str());
}

void SyncFolder(const std::filesystem::path& folder) {
  const int descriptor = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool synced = descriptor >= 0 && fsync(descriptor) == 0;
  const int error = errno;
  if (descriptor >= 0) close(descriptor);
  if (synced) return;
  throw Error(
      fmt::format("{}: cannot be flushed to disk: {}", folder.string(), std::strerror(error)));
}

void CheckRegular(const std::filesystem::path& file) {
  if (std::filesystem::is_directory(file)) {
    throw Error(fmt::format("{}: is a folder, not a file", file.string()));
  }
  if (std::filesystem::is_character_file(file)) {
    throw Error(fmt::format("{}: is a device, not a file", file.string()));
  }
  if (std::filesystem::exists(file) && !std::filesystem::is_regular_file(file)) {
    throw Error(fmt::format("{}: is a pipe or a socket, not a file", file.string()));
  }
}

std::string ReadFile(const std::filesystem::path& file) {
  CheckRegular(file);
  std::ifstream in(file, std::ios::binary);
  if (!in) throw Error(fmt::format("{}: cannot be read: {}", file.string(), std::strerror(errno)));
  std::ostringstream content;
  content << in.rdbuf();
  if (in.bad()) throw Error(fmt::format("{}: reading it failed", file.string()));
  return std::move(content).str();
}

void WriteFile(const std::filesystem::path& file, std::string_view content) {
  CheckWritable(file);
  if (std::filesystem::exists(file) && !std::filesystem::is_regular_file(file)) {
    // A device or a pipe cannot be renamed over and has no half-written state to avoid.
    std::ofstream out(file, std::ios::binary);
    out << content;
    out.flush();
    if (!out) throw Error(fmt::format("{}: cannot be written", file.string()));
    return;
  }
  OutputFile output(file);
  output.Write(content);
  output.Commit();
}

void CheckWritable(const std::filesystem::path& file) {
  if (std::filesystem::is_directory(file)) {
    throw Error(fmt::format("{}: is a folder, a file name is needed", file.string()));
  }
  const std::filesystem::path folder = FolderOf(file);
  if (!std::filesystem::is_directory(folder)) {
    throw Error(fmt::format("{}: there is no folder {}", file.string(), folder.string()));
  }
  const bool special = std::filesystem::exists(file) && !std::filesystem::is_regular_file(file);
  if (access(special ? file.c_str() : folder.c_str(), W_OK) != 0) {
    throw Error(fmt::format("{}: cannot be written: {}", file.string(), std::strerror(errno)));
  }
}

}  // namespace pipelag
