#include "sim/validation.h"

#include <algorithm>
#include <cmath>

namespace pipelag {
namespace {

double Quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  const double place = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, values.size() - 1);
  const double part = place - static_cast<double>(below);
  return values[below] * (1 - part) + values[above] * part;
}

}  // namespace

RunErrors ErrorsOf(const MeasuredRun& measured, const PredictedRun& predicted) {
  RunErrors errors;
  if (measured.step_time_s) {
    errors.time = predicted.step_time_s / *measured.step_time_s - 1;
  } else if (measured.tokens_per_s_per_gpu && predicted.tokens_per_s_per_gpu > 0) {
    errors.time = *measured.tokens_per_s_per_gpu / predicted.tokens_per_s_per_gpu - 1;
  } else if (measured.tflops_per_gpu && predicted.tflops_per_gpu > 0) {
    errors.time = *measured.tflops_per_gpu / predicted.tflops_per_gpu - 1;
  }
  if (measured.peak_memory_gib && predicted.peak_memory_gib > 0) {
    errors.memory = predicted.peak_memory_gib / *measured.peak_memory_gib - 1;
  }
  if (measured.forward_s) errors.forward = predicted.forward_s / *measured.forward_s - 1;
  if (measured.backward_s) errors.backward = predicted.backward_s / *measured.backward_s - 1;
  return errors;
}

ErrorSummary Summarize(const std::vector<double>& errors) {
  ErrorSummary summary;
  if (errors.empty()) return summary;
  std::vector<double> sizes;
  for (const double error : errors) sizes.push_back(std::abs(error));
  summary.runs = static_cast<int>(errors.size());
  summary.median = Quantile(sizes, 0.5);
  summary.p95 = Quantile(sizes, 0.95);
  summary.worst = Quantile(sizes, 1);
  summary.bias = Quantile(errors, 0.5);
  return summary;
}

}  // namespace pipelag
