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

/// A process under way, which writes what it prints to files in its workplace.
class Started {
 public:
  Started(int process, std::filesystem::path out, std::filesystem::path err)
      : process_(process), out_(std::move(out)), err_(std::move(err)) {}

  int process() const { return process_; }
  /// Until one of its threads is held up in a write.
  void WaitUntilHeldUp() const;
  /// Waits for its end. Of one that a signal ended the exit code is minus the signal's number.
  Outcome Finish();
  /// The same, but a process that is still there after a minute is killed.
  Outcome FinishOrKill();

 private:
  int process_;
  std::filesystem::path out_;
  std::filesystem::path err_;
};

/// A named pipe that holds a few lines and that nobody reads: who writes more is held up in that.
class Pipe {
 public:
  explicit Pipe(const std::filesystem::path& file);
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  ~Pipe();

 private:
  int descriptor_;
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
  /// Starts it with variables ("RANK=1") besides the test's own; Finish must be called.
  Started Start(std::string_view command, const std::vector<std::string>& variables) const;
  /// Any other program that is found on the path, likewise.
  Started StartProgram(const std::vector<std::string>& words,
                       const std::vector<std::string>& variables) const;

  /// No file may grow beyond so many bytes: a disk that is full.
  Outcome PipelagOnFullDisk(std::string_view command, size_t most_bytes) const;
  /// What it shows on stderr if that is a terminal.
  std::string PipelagOnTerminal(std::string_view command) const;
  /// Started, and killed (kill -9) as soon as a file has so many lines. False if it ended before.
  bool PipelagKilled(std::string_view command, const std::string& file, size_t lines) const;

  std::filesystem::path PathOf(const std::string& name) const { return folder_ / "work" / name; }
  void Write(const std::string& name, std::string_view content) const;
  void Remove(const std::string& name) const;
  /// Empty if there is no such file.
  std::string Read(const std::string& name) const;
  /// Names of all files, sorted.
  std::vector<std::string> Files() const;
  /// Of all that the folders hold too, in no order.
  std::vector<std::string> AllFiles() const;

 private:
  std::filesystem::path Under(const char* name) const { return folder_ / name; }

  std::filesystem::path folder_;
  mutable int started_ = 0;
};

/// What it printed, and that it succeeded.
nlohmann::json Json(const Outcome& outcome);

/// Number of lines, the last of which must be complete.
size_t Lines(std::string_view text);

}  // namespace pipelag
