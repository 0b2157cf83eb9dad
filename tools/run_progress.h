// How far a run has come, for whoever watches: a line on a terminal, and lines of JSON in a file.
// Must not know what is trained.
#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "runtime/training.h"

namespace pipelag {

/// Tokens of a run and the steps it does.
struct RunExtent {
  int64_t first_step = 0;
  int64_t last_step = 1;
  int64_t tokens_per_step = 1;
};

/// On a terminal a line that grows, with loss, tokens/s and the time left; in a pipe nothing.
class ProgressLine {
 public:
  ProgressLine(std::string name, const RunExtent& extent);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void Show(const StepReport& report);

 private:
  using Clock = std::chrono::steady_clock;

  std::string name_;
  RunExtent extent_;
  bool terminal_;
  bool shown_ = false;
  Clock::time_point start_;
  Clock::time_point last_shown_;
};

/// A header line of what is run, then a line per step, each written at once.
class StepLog {
 public:
  /// Goes on behind what the file holds if `append`, else takes its place. Throws Error naming the
  /// file.
  StepLog(std::string file, bool append);
  ~StepLog();
  StepLog(const StepLog&) = delete;
  StepLog& operator=(const StepLog&) = delete;

  /// Of a file that it goes on behind, lines of steps after the first are dropped: the run that did
  /// them was given up.
  void Begin(const nlohmann::ordered_json& header, const RunExtent& extent);
  /// Throws Error if it cannot be written.
  void Add(const StepReport& report);

 private:
  void DropAfter(int64_t step);
  void WriteLine(const nlohmann::ordered_json& json);

  std::string file_;
  bool goes_on_;
  int descriptor_ = -1;
  RunExtent extent_;
  std::chrono::steady_clock::time_point start_;
  double seconds_ = 0;  ///< from the start to the step before
};

}  // namespace pipelag
