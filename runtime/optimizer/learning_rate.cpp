#include "runtime/optimizer/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace pipelag {

float LearningRate(const LearningRateCourse& course, int64_t update_number) {
  const double peak = course.peak;
  if (update_number <= course.warmup_updates) {
    return static_cast<float>(peak * static_cast<double>(update_number) /
                              static_cast<double>(course.warmup_updates));
  }
  if (course.warmup_updates >= course.total_updates) return course.peak;
  const double progress =
      std::min(1.0, static_cast<double>(update_number - course.warmup_updates) /
                        static_cast<double>(course.total_updates - course.warmup_updates));
  const double cosine = 0.5 * (1 + std::cos(std::numbers::pi * progress));
  return static_cast<float>(peak * (course.final_fraction + (1 - course.final_fraction) * cosine));
}

}  // namespace pipelag
