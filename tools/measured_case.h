// A row of a case file, simulated. Must not know what it is compared with, nor how that is shown.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "models/schedule/program.h"
#include "tools/case_file.h"
#include "tools/model_flags.h"

namespace pipelag {

/// A row that is ready to be simulated under any efficiency. It must outlive this. Whatever is
/// wrong with it is an Error that names file and row: a schedule or layout that cannot be, neither
/// a machine nor times, and a key that says nothing of a run that was measured once.
class MeasuredCase {
 public:
  explicit MeasuredCase(const CaseRow& row);

  const CaseRow& row() const { return row_; }
  std::string schedule() const { return program_.schedule().name; }
  std::string machine() const { return run_ ? run_->machine.name : "times given"; }
  Efficiency start() const { return run_ ? run_->efficiency : Efficiency{}; }

  /// Without memory.
  PredictedRun Predict(const Efficiency& efficiency) const;

  struct Memory {
    Bytes peak = 0;    ///< of the rank that needs most; 0: not known, as the next
    Bytes device = 0;  ///< what it has
  };
  Memory MemoryBy(const Efficiency& efficiency) const;

 private:
  RunLayout Layout() const;
  PredictedRun PredictedBy(const Efficiency& efficiency) const;

  const CaseRow& row_;
  Program program_;
  std::optional<ModelledRun> run_;
};

}  // namespace pipelag
