// How far simulated runs are from measured ones: an error per run, and what is said of many. Knows
// no files and no names.
#pragma once

#include <optional>
#include <vector>

namespace pipelag {

/// What was measured of a run; at least one.
struct MeasuredRun {
  std::optional<double> step_time_s;
  std::optional<double> tokens_per_s_per_gpu;
  std::optional<double> tflops_per_gpu;   ///< model FLOPs: nothing recomputed is counted
  std::optional<double> peak_memory_gib;  ///< of the rank that needs most
};

struct PredictedRun {
  double step_time_s = 0;
  double tokens_per_s_per_gpu = 0;  ///< 0: not known
  double tflops_per_gpu = 0;        ///< 0: not known
  double peak_memory_gib = 0;       ///< 0: not known
};

/// simulated / measured − 1.
struct RunErrors {
  /// Of the step time. Where a rate was measured instead: of the time it stands for, so that a run
  /// predicted too slow is positive whatever was measured.
  std::optional<double> time;
  std::optional<double> memory;
};
RunErrors ErrorsOf(const MeasuredRun& measured, const PredictedRun& predicted);

struct ErrorSummary {
  int runs = 0;
  double median = 0;  ///< of the errors' sizes, as are the next two
  double p95 = 0;     ///< between the two nearest where none stands there
  double worst = 0;
  double bias = 0;  ///< median with its sign
};
/// All zero if there are none.
ErrorSummary Summarize(const std::vector<double>& errors);

}  // namespace pipelag
