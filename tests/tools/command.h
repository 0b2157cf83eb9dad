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

  void Write(const std::string& name, std::string_view content) const;
  void Remove(const std::string& name) const;
  /// Empty if there is no such file.
  std::string Read(const std::string& name) const;
  /// Names of all files, sorted.
  std::vector<std::string> Files() const;

 private:
  std::filesystem::path folder_;
};

/// What it printed, and that it succeeded.
nlohmann::json Json(const Outcome& outcome);

/// Number of lines, the last of which must be complete.
size_t Lines(std::string_view text);

}  // namespace pipelag
