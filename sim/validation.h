// How far simulated runs are from measured ones: an error per run, and what is said of many. Knows
// no files and no names.
#pragma once

#include <optional>
#include <vector>

namespace pipelag {

/// What was measured of a run; at least one.
struct MeasuredRun {
  std::optional<double> step_time_s = std::nullopt;
  std::optional<double> tokens_per_s_per_gpu = std::nullopt;
  /// Model FLOPs: nothing recomputed is counted.
  std::optional<double> tflops_per_gpu = std::nullopt;
  std::optional<double> peak_memory_gib = std::nullopt;  ///< of the rank that needs most
  std::optional<double> forward_s = std::nullopt;   ///< F of the stage that takes longest for it
  std::optional<double> backward_s = std::nullopt;  ///< and B
};

struct PredictedRun {
  double step_time_s = 0;
  double tokens_per_s_per_gpu = 0;  ///< 0: not known
  double tflops_per_gpu = 0;        ///< 0: not known
  double peak_memory_gib = 0;       ///< 0: not known
  double forward_s = 0;
  double backward_s = 0;
};

/// simulated / measured − 1.
struct RunErrors {
  /// Of the step time. Where a rate was measured instead: of the time it stands for, so that a run
  /// predicted too slow is positive whatever was measured.
  std::optional<double> time;
  std::optional<double> memory;
  std::optional<double> forward;
  std::optional<double> backward;
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
