// The course of the learning rate over a run. Knows update numbers only: delay and batches do not
// move it.
#pragma once

#include <cstdint>

namespace pipelag {

/// Linear warm-up, then half a cosine (Loshchilov, Hutter, arXiv 1608.03983, without restarts).
struct LearningRateCourse {
  float peak = 1e-3f;
  int64_t warmup_updates = 0;
  int64_t total_updates = 1;
  double final_fraction = 0.1;  ///< of the peak, reached at the last update

  bool operator==(const LearningRateCourse&) const = default;
};

/// The rate of update n = `update_number`, counted from 1: peak · n / warm-up up to the warm-up's
/// last update, which has the peak; from there the cosine to peak · final_fraction at
/// `total_updates` and beyond. A warm-up as long as the run never leaves the peak.
float LearningRate(const LearningRateCourse& course, int64_t update_number);

}  // namespace pipelag
