// Runs the built `pipelag` binary as a user would: in a fresh folder of its own, with what it
// prints and returns. Knows nothing of the code behind it.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace pipelag {

struct Outcome {
  int exit_code = -1;
  std::string out;
  std::string err;
};

/// A fresh folder that is gone with the object. Relative names are within it.
class Workplace {
 public:
  Workplace();
  Workplace(const Workplace&) = delete;
  Workplace& operator=(const Workplace&) = delete;
  ~Workplace();

  /// `command` without the leading "pipelag", words parted by blanks.
  Outcome Pipelag(std::string_view command) const;
  /// Words as they are.
  Outcome Pipelag(const std::vector<std::string>& words) const;

  /// No file may grow beyond so many bytes: a disk that is full.
  Outcome PipelagOnFullDisk(std::string_view command, size_t most_bytes) const;
  /// What it shows on stderr if that is a terminal.
  std::string PipelagOnTerminal(std::string_view command) const;
  /// Started, and killed (kill -9) as soon as a file has so many lines. False if it ended before.
  bool PipelagKilled(std::string_view command, const std::string& file, size_t lines) const;

  void Write(const std::string& name, std::string_view content) const;
  void Remove(const std::string& name) const;
  /// Empty if there is no such file.
  std::string Read(const std::string& name) const;
  /// Names of all files, sorted.
  std::vector<std::string> Files() const;

 private:
  std::filesystem::path Under(const char* name) const { return folder_ / name; }

  std::filesystem::path folder_;
};

/// What it printed, and that it succeeded.
nlohmann::json Json(const Outcome& outcome);

/// Number of lines, the last of which must be complete.
size_t Lines(std::string_view text);

}  // namespace pipelag
